// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

var sentinels = []error{
	aws.ErrThrottled, aws.ErrTransient, aws.ErrENIFull, aws.ErrInstanceFull, aws.ErrSubnetFull, aws.ErrQuota,
	aws.ErrIndexTaken, aws.ErrCardFull, aws.ErrInUse,
	aws.ErrNotFound, aws.ErrNotRunning, aws.ErrTooManyGroups, aws.ErrNoGroup, aws.ErrTokenUsed, aws.ErrDenied,
	aws.ErrNoMetadata,
}

// TestErrorCodes gives answers of EC2 to the Client. It checks the sentinel of each error, and a part of its hint,
// which both come from the table of codes.go.
func TestErrorCodes(t *testing.T) {
	tests := []struct {
		code, message string
		is            error
		hint          string
	}{
		{"RequestLimitExceeded", "Request limit exceeded.", aws.ErrThrottled, "may call AssignPrivateIpAddresses"},
		{"EC2ThrottledException", "", aws.ErrThrottled, "larger batches"},
		{"Throttling", "Rate exceeded", aws.ErrThrottled, "larger batches"},
		{"InsufficientFreeAddressesInSubnet",
			"The specified subnet does not have enough free addresses to satisfy the request.", aws.ErrSubnetFull,
			"subnetTags"},
		{"InsufficientCidrBlocks", "The specified subnet does not have enough free cidr blocks to satisfy the request.",
			aws.ErrSubnetFull, "create-subnet-cidr-reservation"},
		{"InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes", aws.ErrSubnetFull,
			"create-subnet-cidr-reservation"},
		{"InvalidParameterValue", "There aren't sufficient free Ipv6 addresses or prefixes", aws.ErrSubnetFull,
			"create-subnet-cidr-reservation"},
		{"PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.", aws.ErrENIFull, ""},
		{"InvalidInterface.IpAddressLimitExceeded", "", aws.ErrENIFull, ""},
		{"AttachmentLimitExceeded", "Interface count 4 exceeds the limit for c5.large", aws.ErrInstanceFull,
			"prefixes"},
		{"NetworkInterfaceLimitExceeded", "", aws.ErrQuota, "quota"},
		{"SecurityGroupsPerInterfaceLimitExceeded", "", aws.ErrTooManyGroups, "secGroupIds"},
		{"InvalidParameterValue", "user 1 has exceeded limit 5 on the number of interface security group memberships",
			aws.ErrTooManyGroups, "secGroupIds"},
		{"InvalidParameter", "Security group sg-1 and subnet subnet-1 belong to different networks.", aws.ErrNoGroup,
			"secGroupIds"},
		{"InvalidGroup.NotFound", "You have specified two resources that belong to different networks.", aws.ErrNoGroup,
			"secGroupIds"},
		{"InvalidParameterValue", "Instance 'i-1' already has an interface attached at device index '1'.",
			aws.ErrIndexTaken, ""},
		{"InvalidParameterValue", "The specified number '2' for the device index exceeds the maximum number of " +
			"network interfaces supported by the network card at network card index 2.", aws.ErrCardFull, ""},
		{"InvalidParameterValue", "Instance 'i-1' is not 'running'.", aws.ErrNotRunning, "stopping"},
		{"Resource.AlreadyAssigned", "", aws.ErrInUse, ""},
		{"InvalidIPAddress.InUse", "", aws.ErrInUse, ""},
		{"InvalidNetworkInterface.InUse", "", aws.ErrInUse, ""},
		{"InvalidParameterValue", "Network interface 'eni-1' is currently in use.", aws.ErrInUse, ""},
		{"InvalidParameterValue", "10.0.0.9 is already assigned to eni-2", aws.ErrInUse, ""},
		{"DependencyViolation", "", aws.ErrInUse, ""},
		{"InvalidNetworkInterfaceID.NotFound", "The networkInterface ID 'eni-1' does not exist", aws.ErrNotFound, ""},
		{"InvalidNetworkInterface.NotFound", "", aws.ErrNotFound, ""},
		{"InvalidAttachmentID.NotFound", "", aws.ErrNotFound, ""},
		{"InvalidInstanceType", "", aws.ErrNotFound, ""},
		{"UnauthorizedOperation", "You are not authorized to perform this operation.", aws.ErrDenied,
			"allow ec2:AssignPrivateIpAddresses in the instance role"},
		{"UnauthorizedOperation", "User: arn:aws:sts::1:assumed-role/node/i-1 is not authorized to perform: " +
			"ec2:CreateTags on resource: *", aws.ErrDenied, "allow ec2:CreateTags in the instance role"},
		{"UnauthorizedOperation", "You are not authorized to perform this operation. No identity-based policy allows " +
			"the ec2:CreateTags action", aws.ErrDenied, "allow ec2:CreateTags in the instance role"},
		{"RequestExpired", "", aws.ErrDenied, "clock"},
		{"RequestExpired", "", aws.ErrDenied, "temporary credentials have expired"},
		{"ExpiredToken", "", aws.ErrDenied, "temporary credentials have expired"},
		{"ExpiredTokenException", "", aws.ErrDenied, "temporary credentials have expired"},
		{"AuthFailure", "AWS was not able to validate the provided access credentials", aws.ErrDenied, "credentials"},
		{"AssumeRoleUnauthorizedAccess", "", aws.ErrDenied, "trust ec2.amazonaws.com"},
		{"OptInRequired", "", aws.ErrDenied, "account"},
		{"TagPolicyViolation", "", aws.ErrDenied, "eniTags"},
		{"OperationNotPermitted", "The network interface at device index 0 cannot be detached", aws.ErrDenied, ""},
		{"IdempotentParameterMismatch", "", aws.ErrTokenUsed, ""},
		{"IncorrectState", "", aws.ErrTransient, ""},
		{"IncorrectInstanceState", "", aws.ErrTransient, ""},
		{"ConcurrentTagAccess", "", aws.ErrTransient, ""},
		{"InternalError", "An internal error has occurred", aws.ErrTransient, "health.aws.amazon.com"},
		{"ServiceUnavailable", "", aws.ErrTransient, "health.aws.amazon.com"},
		{"Unavailable", "", aws.ErrTransient, "health.aws.amazon.com"},
		{"InsufficientAddressCapacity", "", aws.ErrSubnetFull, "ipBatchSize"},
		{"InvalidState", "", aws.ErrTransient, ""},
		{"ServerInternal", "", aws.ErrTransient, "health.aws.amazon.com"},
		{"AuthFailure", "You do not own the specified network interface", aws.ErrDenied, "another account owns"},
		{"AuthFailure", "The caller is not the owner of eni-1", aws.ErrDenied, "another account owns"},
		{"AuthFailure", "The networkInterface eni-1 does not belong to you", aws.ErrDenied, "another account owns"},
		{"RequestInTheFuture", "", aws.ErrDenied, "clock"},
		{"InvalidSignatureException", "", aws.ErrDenied, "credentials"},
		{"UnauthorizedOperation", "User: arn:aws:sts::1:assumed-role/node/i-1 is not authorized to perform: " +
			"ec2:AttachNetworkInterface on resource: * with an explicit deny in a service control policy. Encoded " +
			"authorization failure message: AAAA",
			aws.ErrDenied, "denies ec2:AttachNetworkInterface explicitly"},
		{"UnauthorizedOperation", "User: x is not authorized to perform: ec2:CreateTags on resource: * because no " +
			"service control policy allows the ec2:CreateTags action",
			aws.ErrDenied, "allow ec2:CreateTags in the service control policies"},
		{"UnauthorizedOperation", "User: x is not authorized to perform: ec2:CreateTags on resource: * because no " +
			"permissions boundary allows the ec2:CreateTags action",
			aws.ErrDenied, "allow ec2:CreateTags in the permissions boundary"},
		{"UnauthorizedOperation", "User: x is not authorized to perform: ec2:AssignIpv6Addresses", aws.ErrDenied,
			"ec2:AssignIpv6Addresses"},
		{"UnauthorizedOperation",
			"You are not authorized to perform this operation. Encoded authorization failure message: AAAA",
			aws.ErrDenied, "decode-authorization-message"},
		{"UnsupportedOperation", "The operation is not supported.", nil, "does not support AssignPrivateIpAddresses"},
		{"OperationNotPermitted", "The network interface is managed", aws.ErrDenied, "manages this ENI or subnet"},
		{"InvalidParameterValue", "Value (x) for parameter y is invalid.", nil,
			"does not accept what AssignPrivateIpAddresses asks for"},
		{"SomethingNew", "", nil, "does not know the code"},
	}
	for _, tt := range tests {
		inBubble(t, tt.code, func(t *testing.T) {
			c := client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				refuse(w, 400, tt.code, tt.message)
			}), tree{})
			_, err := c.Assign(t.Context(), "eni-1", 1)
			for _, s := range sentinels {
				if got, want := errors.Is(err, s), s == tt.is; got != want {
					t.Errorf("errors.Is(%q, %q) = %v, want %v", err, s, got, want)
				}
			}
			if hint := aws.Hint(err); !strings.Contains(hint, tt.hint) || tt.hint == "" && tt.is == nil && hint != "" {
				t.Errorf("hint %q, want it to contain %q", hint, tt.hint)
			}
			want := aws.Error{Action: "AssignPrivateIpAddresses", Code: tt.code, Message: tt.message,
				RequestID: "req-1"}
			if got, ok := errors.AsType[*aws.Error](err); !ok || got.Action != want.Action || got.Code != want.Code ||
				got.Message != want.Message || got.RequestID != want.RequestID {
				t.Errorf("error %#v, want %#v", got, want)
			}
		})
	}
}

func TestErrorText(t *testing.T) {
	tests := []struct {
		err  *aws.Error
		want string
	}{
		{&aws.Error{Action: "AssignPrivateIpAddresses", Code: "InsufficientFreeAddressesInSubnet", Message: "No room.",
			RequestID: "req-1"},
			"AssignPrivateIpAddresses: InsufficientFreeAddressesInSubnet: No room. (request req-1)"},
		{&aws.Error{Action: "DescribeVpcs", Code: "InternalError"}, "DescribeVpcs: InternalError"},
		{&aws.Error{Action: "DescribeVpcs", Err: context.DeadlineExceeded}, "DescribeVpcs: context deadline exceeded"},
		{&aws.Error{Action: "AttachNetworkInterface", Code: "UnauthorizedOperation",
			Message: "You may not. Encoded authorization failure message: AAAA"},
			"AttachNetworkInterface: UnauthorizedOperation: You may not."},
		{&aws.Error{Action: "DescribeVpcs", Code: "New", Message: strings.Repeat("long ", 1000)},
			"DescribeVpcs: New: " + strings.Repeat("long ", 120) + "..."},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// TestEndlessRefusal: an error of EC2 may be very long. The Client must read, store and show only a limited part of it.
func TestEndlessRefusal(t *testing.T) {
	const begin = "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>"
	t.Run("endless", func(t *testing.T) {
		body := &endless{begin: begin}
		c := aws.New(aws.Options{EC2URL: "http://ec2.test", HTTP: body, Attempts: 1})
		err := drop(c.VPC(t.Context(), "vpc-1"))
		if !errors.Is(err, aws.ErrTransient) || !strings.Contains(err.Error(), "400") ||
			!strings.Contains(err.Error(), "UnauthorizedOperation") || len(err.Error()) > 1000 {
			t.Errorf("got %v", err)
		}
		if most := 1 << 20; body.read > most {
			t.Errorf("%d bytes were read, want at most %d", body.read, most)
		}
	})
	t.Run("long", func(t *testing.T) {
		c := client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			refuse(w, 400, "UnauthorizedOperation", strings.Repeat("x", 200<<10))
		}), tree{})
		err := drop(c.VPC(t.Context(), "vpc-1"))
		e, ok := errors.AsType[*aws.Error](err)
		if !errors.Is(err, aws.ErrDenied) || !ok || len(e.Message) > 10<<10 || len(err.Error()) > 1000 {
			t.Errorf("got %v", err)
		}
	})
}

// An endless server answers with an error that does not end.
type endless struct {
	begin string
	read  int
}

func (e *endless) Do(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 400, Status: "400 Bad Request", Header: http.Header{}, Request: r,
		Body: io.NopCloser(io.MultiReader(strings.NewReader(e.begin), e))}, nil
}

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// TestErrorWithoutCode checks errors that have no code of EC2, because EC2 itself has not answered.
func TestErrorWithoutCode(t *testing.T) {
	inBubble(t, "no server listens", func(t *testing.T) {
		c := aws.New(aws.Options{EC2URL: "http://127.0.0.1:1"})
		err := c.DeleteENI(t.Context(), "eni-1")
		const want = `DeleteNetworkInterface: Post "http://127.0.0.1:1/": dial tcp 127.0.0.1:1: connect: ` +
			`connection refused`
		if !errors.Is(err, aws.ErrTransient) || err.Error() != want ||
			!strings.Contains(aws.Hint(err), "VPC endpoint") {
			t.Errorf("got %q, hint %q, want %q", err, aws.Hint(err), want)
		}
	})
	inBubble(t, "a broken load balancer", func(t *testing.T) {
		c := client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "<html>bad gateway", http.StatusBadGateway)
		}), tree{})
		if err := c.DeleteENI(t.Context(), "eni-1"); !errors.Is(err, aws.ErrTransient) {
			t.Errorf("got %v, want ErrTransient", err)
		}
	})
	inBubble(t, "cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		c := client(http.NotFoundHandler(), tree{})
		if err := c.DeleteENI(ctx, "eni-1"); err == nil ||
			err.Error() != "DeleteNetworkInterface: context canceled: enough" || !errors.Is(err, context.Canceled) ||
			errors.Is(err, aws.ErrTransient) {
			t.Errorf("got %v, want enough", err)
		}
	})
}
