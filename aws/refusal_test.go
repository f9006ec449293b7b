// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

const (
	call, eni, subnet, action         = aws.ScopeCall, aws.ScopeENI, aws.ScopeSubnet, aws.ScopeAction
	instance, account, unknownOutcome = aws.ScopeInstance, aws.ScopeAccount, aws.ScopeUnknown
)

// changes are the actions that change an existing ENI.
var changes = []string{"AssignPrivateIpAddresses", "AssignIpv6Addresses", "UnassignPrivateIpAddresses",
	"UnassignIpv6Addresses",
	"ModifyNetworkInterfaceAttribute", "DetachNetworkInterface", "DeleteNetworkInterface", "CreateTags"}

// TestScopes checks the scope of each of EC2's codes, for every action that changes something.
func TestScopes(t *testing.T) {
	for _, tt := range []struct {
		code, message          string
		change, create, attach aws.Scope
		lasts                  time.Duration
	}{
		{"RequestLimitExceeded", "", action, action, action, 0},
		{"InsufficientFreeAddressesInSubnet", "", eni, subnet, subnet, 0},
		{"InsufficientAddressCapacity", "", eni, subnet, subnet, 0},
		{"InsufficientCidrBlocks", "", eni, subnet, subnet, 0},
		{"PrivateIpAddressLimitExceeded", "", eni, subnet, eni, 0},
		{"AttachmentLimitExceeded", "", instance, instance, instance, 0},
		{"NetworkInterfaceLimitExceeded", "", account, account, account, 0},
		{"SecurityGroupsPerInterfaceLimitExceeded", "", call, call, call, 0},
		{"InvalidGroup.NotFound", "", call, call, call, 0},
		{"InvalidParameterValue", "already has an interface attached at device index '1'", call, call, call, 0},
		{"InvalidParameterValue", "Instance 'i-1' is not 'running'.", instance, instance, instance, 0},
		{"InvalidNetworkInterface.InUse", "", eni, subnet, eni, 0},
		{"Resource.AlreadyAssigned", "", eni, subnet, eni, 0},
		{"DependencyViolation", "", eni, subnet, eni, 0},
		{"InvalidNetworkInterfaceID.NotFound", "", eni, subnet, eni, 0},
		{"InvalidSubnetID.NotFound", "", eni, subnet, eni, 0},
		{"UnauthorizedOperation", "", action, subnet, action, time.Minute},
		{"UnauthorizedOperation", "with an explicit deny", action, subnet, action, time.Minute},
		{"RequestExpired", "", instance, instance, instance, 0},
		{"ExpiredToken", "", instance, instance, instance, 0},
		{"AuthFailure", "AWS was not able to validate the provided access credentials", account, account, account, 0},
		{"AuthFailure", "You do not own the network interface", eni, subnet, subnet, 5 * time.Minute},
		{"OptInRequired", "", account, account, account, 0},
		{"TagPolicyViolation", "", call, call, call, 0},
		{"OperationNotPermitted", "", eni, subnet, subnet, 5 * time.Minute},
		{"UnsupportedOperation", "", eni, subnet, subnet, 5 * time.Minute},
		{"Unsupported", "", eni, subnet, subnet, 5 * time.Minute},
		{"IdempotentParameterMismatch", "", call, call, call, 0},
		{"IncorrectState", "", eni, subnet, eni, 10 * time.Second},
		{"IncorrectInstanceState", "", eni, subnet, eni, 10 * time.Second},
		{"InvalidState", "", eni, subnet, eni, 10 * time.Second},
		{"ConcurrentTagAccess", "", call, call, call, 0},
		{"InvalidParameterCombination", "", eni, subnet, subnet, time.Minute},
		{"InvalidParameterValue", "Value (x) is invalid", eni, subnet, subnet, time.Minute},
		{"SomethingNew", "", eni, subnet, subnet, time.Minute},
	} {
		want := map[string]aws.Scope{"CreateNetworkInterface": tt.create, "AttachNetworkInterface": tt.attach}
		for _, a := range changes {
			want[a] = tt.change
		}
		for a, scope := range want {
			err := fmt.Errorf("grow: %w", &aws.Error{Action: a, Code: tt.code, Message: tt.message})
			if r, ok := aws.RefusalOf(err); !ok || r.Scope != scope || r.Lasts != tt.lasts || r.Code != tt.code {
				t.Errorf("%s %s %q: about %s for %v, want %s for %v", a, tt.code, tt.message, r.Scope, r.Lasts,
					scope, tt.lasts)
			}
		}
	}
}

// TestNoRefusal: an error is no refusal if EC2 may have carried out the call, or has not answered.
func TestNoRefusal(t *testing.T) {
	for _, err := range []error{
		nil, io.EOF, &aws.Error{Err: context.DeadlineExceeded},
		&aws.Error{Code: "InternalError"}, &aws.Error{Code: "Unavailable"}, &aws.Error{Code: "ServiceUnavailable"},
		&aws.Error{Code: "UnsupportedOperation", MaybeDone: true},
		errors.Join(&aws.Error{Code: "UnsupportedOperation"}, &aws.Error{MaybeDone: true, Err: io.EOF}),
	} {
		if r, ok := aws.RefusalOf(err); ok {
			t.Errorf("%v is a refusal of one %s", err, r.Scope)
		}
	}
	if _, ok := aws.RefusalOf(&aws.Error{Code: "InternalError"}); ok || unknownOutcome == "" {
		t.Error("a fault of EC2 is no refusal")
	}
}

// TestBrief checks that the shortened message, which the registry keeps, leads to the same hint. The shortened message
// must have no encoded part.
func TestBrief(t *testing.T) {
	for _, message := range []string{
		"You are not authorized to perform this operation. Encoded authorization failure message: AAAA",
		"User: x is not authorized to perform: ec2:CreateTags with an explicit deny in an identity-based policy. " +
			"Encoded authorization failure message: AAAA",
		"You are not authorized to perform this operation.",
	} {
		e := &aws.Error{Action: "AttachNetworkInterface", Code: "UnauthorizedOperation", Message: message}
		kept := &aws.Error{Action: e.Action, Code: e.Code, Message: e.Brief()}
		if aws.Hint(kept) != aws.Hint(e) || kept.Error() != e.Error() || kept.Brief() != e.Brief() {
			t.Errorf("%q became %q: %q", message, kept.Message, aws.Hint(kept))
		}
	}
}
