// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

const always = -1

// A refusal is an error of EC2, with its effect on an ADD.
type refusal struct {
	action, code, message string
	times                 int   // how often EC2 returns the error
	is                    error // the error of the ADD; nil: the ADD succeeds nevertheless
	hint                  string
	attempts              int // calls of the action by this ADD; 0: any number
	enis                  int // ENIs after the ADD, with the boot ENI
}

func (r refusal) name() string {
	words := strings.Fields(r.message)
	return r.action + " " + r.code + " " + strings.Join(words[:min(len(words), 4)], " ")
}

// meet runs an ADD whose call EC2 refuses, and checks the effect.
func (r refusal) meet(w *world, pod int) {
	w.Helper()
	w.EC2.ResetCalls()
	w.EC2.FailAs(r.action, r.code, r.message, r.times)
	_, err := w.acquire(pod)
	if !errors.Is(err, r.is) {
		w.Errorf("got %v, want %v", err, r.is)
	}
	if e, ok := errors.AsType[*plugin.Error](err); r.is != nil && (!ok || e.Code != plugin.CodeTryAgain ||
		!strings.Contains(e.Hint, r.hint) || !strings.Contains(e.Error(), r.code)) {
		w.Errorf("error %v: %+v", err, e)
	}
	if n := w.EC2.Asked(r.action); r.attempts > 0 && n != r.attempts {
		w.Errorf("%d attempts, want %d: %v", n, r.attempts, w.EC2.Calls())
	}
	if n := len(w.EC2.ENIs()); n != r.enis {
		w.Errorf("%d ENIs, want %d", n, r.enis)
	}
	w.EC2.Fail(r.action, "", 0)
	w.consistent()
	w.Forgive()
}

// TestCodesOfAssign: EC2 refuses to assign addresses to an ENI that has room according to the registry.
func TestCodesOfAssign(t *testing.T) {
	const assign = "AssignPrivateIpAddresses"
	for _, r := range []refusal{
		{assign, "InsufficientFreeAddressesInSubnet", "", always, nil, "", 1, 3},
		{assign, "InsufficientAddressCapacity", "", always, nil, "", 1, 3},
		{assign, "PrivateIpAddressLimitExceeded", "", always, nil, "", 1, 3},
		{assign, "InvalidInterface.IpAddressLimitExceeded", "", always, nil, "", 1, 3},
		{assign, "InvalidNetworkInterfaceID.NotFound", "", always, nil, "", 1, 3}, // EC2 shows the ENI, so it stays
		{assign, "InvalidNetworkInterface.NotFound", "", always, nil, "", 1, 3},
		{assign, "Resource.AlreadyAssigned", "", 1, nil, "", 1, 3},
		{assign, "InvalidIPAddress.InUse", "", 1, nil, "", 1, 3},
		{assign, "InvalidParameterValue", "Address 10.0.0.9 is already assigned.", 1, nil, "", 1, 3},
		{assign, "InternalError", "", 1, nil, "", 2, 2},
		{assign, "ServerInternal", "", 1, nil, "", 2, 2},
		{assign, "Unavailable", "", 1, nil, "", 2, 2},
		{assign, "ServiceUnavailable", "", 1, nil, "", 2, 2},
		{assign, "RequestLimitExceeded", "", 1, nil, "", 2, 2},
		{assign, "UnauthorizedOperation", "", always, aws.ErrDenied, "allow ec2:AssignPrivateIpAddresses", 1, 2},
		{assign, "AuthFailure", "", always, aws.ErrDenied, "credentials", 1, 2},
		{assign, "RequestExpired", "", always, aws.ErrDenied, "clock", 0, 2}, // the SDK may correct its clock
	} {
		t.Run(r.name(), func(t *testing.T) {
			w := newWorld(t, "m5.large", 20, 20)
			w.mustAcquire(0)
			r.meet(w, 1)
			if r.is != nil {
				w.mustAcquire(2) // nothing is left of the failed ADD
			}
			if s := w.State(); len(s.ENIs) != len(w.EC2.ENIs()) || len(s.Waiters) != 0 {
				t.Errorf("the registry has %d ENIs of %d, and waiters %v", len(s.ENIs), len(w.EC2.ENIs()), s.Waiters)
			}
		})
	}
}

// TestCodesOfCreate: EC2 refuses to create an ENI.
func TestCodesOfCreate(t *testing.T) {
	const create = "CreateNetworkInterface"
	for _, r := range []refusal{
		{create, "InsufficientFreeAddressesInSubnet", "", 1, nil, "", 2, 2},
		{create, "InsufficientFreeAddressesInSubnet", "", always, aws.ErrSubnetFull, "subnet", 2, 1},
		{create, "InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes", 1, nil, "", 2, 2},
		{create, "InvalidParameterValue",
			"user 1 has exceeded limit 5 on the number of interface security group memberships", always,
			aws.ErrTooManyGroups, "secGroupIds", 1, 1},
		{create, "SecurityGroupsPerInterfaceLimitExceeded", "", always, aws.ErrTooManyGroups, "secGroupIds", 1, 1},
		{create, "NetworkInterfaceLimitExceeded", "", always, aws.ErrQuota, "quota", 1, 1},
		{create, "IdempotentParameterMismatch", "", 1, aws.ErrTokenUsed, "", 1, 1},
		{create, "TagPolicyViolation", "The tag 'team' is missing.", always, aws.ErrDenied, "eniTags", 1, 1},
		// The ADD tries both subnets.
		{create, "UnauthorizedOperation", "You are not authorized to perform this operation.", always, aws.ErrDenied,
			"allow ec2:CreateNetworkInterface", 2, 1},
		{create, "OptInRequired", "", always, aws.ErrDenied, "account", 1, 1},
		{create, "ConcurrentTagAccess", "", 1, nil, "", 2, 2},
		{create, "InternalError", "", 1, nil, "", 2, 2},
		{create, "RequestLimitExceeded", "", 1, nil, "", 2, 2},
		{"DescribeSubnets", "UnauthorizedOperation", "", always, aws.ErrDenied, "", 1, 1},
		{"DescribeInstanceTypes", "UnauthorizedOperation", "", always, aws.ErrDenied, "", 1, 1},
		{"DescribeSubnets", "OperationNotPermitted", "", always, aws.ErrDenied, "", 1, 1},
	} {
		t.Run(r.name(), func(t *testing.T) {
			w := newWorld(t, "m5.large", 20, 20)
			r.meet(w, 0)
			lasts := errors.Is(r.is, aws.ErrQuota) || errors.Is(r.is, aws.ErrSubnetFull)
			if !lasts && r.is != nil {
				w.mustAcquire(1)
			}
			w.noneLeaked()
		})
	}
}

// TestCodesOfAttach: EC2 refuses to attach the new ENI.
func TestCodesOfAttach(t *testing.T) {
	const attach, modify = "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute"
	for _, r := range []refusal{
		{attach, "InvalidParameterValue", "Instance 'i-1' already has an interface attached at device index '1'.", 1,
			nil, "", 2, 2},
		{attach, "InvalidParameterValue", "Instance 'i-1' is not 'running'.", always, aws.ErrNotRunning, "", 1, 1},
		{attach, "AttachmentLimitExceeded", "", always, aws.ErrInstanceFull, "", 1, 1},
		{attach, "InvalidNetworkInterfaceID.NotFound", "", 2, nil, "", 3, 2}, // EC2 may not find a new ENI at first
		{attach, "InvalidNetworkInterface.InUse", "", 1, aws.ErrInUse, "", 1, 2},
		{attach, "IncorrectState", "", 1, nil, "", 2, 2},
		{attach, "IncorrectInstanceState", "", 1, nil, "", 2, 2},
		{attach, "InvalidState", "", 1, nil, "", 2, 2},
		{attach, "UnauthorizedOperation", "", always, aws.ErrDenied, "allow ec2:AttachNetworkInterface", 1, 2},
		{modify, "InvalidAttachmentID.NotFound", "", 1, nil, "", 1, 2},
		{modify, "UnauthorizedOperation", "", 1, nil, "", 1, 2},
	} {
		t.Run(r.name(), func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			r.meet(w, 0)
			s := w.State()
			if full := errors.Is(r.is, aws.ErrInstanceFull); full != time.Now().Before(s.Instance.FullUntil) {
				t.Errorf("the node is full: %v, until %v", full, s.Instance.FullUntil)
			}
			if r.enis > 1 {
				w.policy.Batch = 30 // so that the node grows
				w.mustAcquire(1)
			}
			w.noneLeaked()
		})
	}
}

// noneLeaked checks that every ENI is attached to the node, and that EC2 deletes it with the instance.
func (w *world) noneLeaked() {
	w.Helper()
	for _, e := range w.EC2.ENIs() {
		if e.Instance != w.ID || !e.DeleteOnTermination {
			w.Errorf("%s is leaked: %+v", e.ID, e)
		}
	}
}

// TestCodesOfPrefixes: if the subnet has no free /28, the ENI gets single addresses. If the subnet lacks addresses for
// the whole batch, the ENI gets one address.
func TestCodesOfPrefixes(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(0)
	w.policy.Prefixes = true
	refusal{"AssignPrivateIpAddresses", "InsufficientCidrBlocks", "", 1, nil, "", 2, 2}.meet(w, 1)
	w.policy.Prefixes, w.policy.Batch = false, 4
	refusal{"AssignPrivateIpAddresses", "InsufficientFreeAddressesInSubnet", "", 1, nil, "", 2, 2}.meet(w, 2)
	refusal{"AssignPrivateIpAddresses", "InsufficientAddressCapacity", "", 1, nil, "", 2, 2}.meet(w, 3)
}

// TestQuota: EC2 refuses to create an ENI, because the account's quota is used up. For some time, the next ADDs do not
// ask EC2 to create an ENI.
func TestQuota(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	refusal{"CreateNetworkInterface", "NetworkInterfaceLimitExceeded", "", 1, aws.ErrQuota, "quota", 1, 1}.meet(w, 0)
	w.EC2.ResetCalls()
	_, err := w.acquire(1)
	if e, ok := errors.AsType[*plugin.Error](err); !ok || !errors.Is(err, aws.ErrQuota) ||
		!strings.Contains(e.Hint, "quota") || w.EC2.Asked("CreateNetworkInterface") != 0 {
		t.Errorf("%d attempts: %v", w.EC2.Asked("CreateNetworkInterface"), err)
	}
	if s := w.State(); len(s.NotBefore) > 0 || !s.Instance.QuotaUntil.After(time.Now()) {
		t.Errorf("a quota that is used up passes for throttling: %v", s.NotBefore)
	}
	w.Edit(func(s *registry.State) { s.Instance.QuotaUntil = time.Now() })
	w.mustAcquire(2)
}

// TestCodesOfCollect: EC2 refuses a call of a collection. The collection returns the error, or ignores it if the
// refusal does no harm. The next collection finishes the work.
func TestCodesOfCollect(t *testing.T) {
	const detach, remove = "DetachNetworkInterface", "DeleteNetworkInterface"
	for _, test := range []struct {
		action, code, message string
		is                    error
	}{
		{detach, "IncorrectState", "", aws.ErrTransient},
		{detach, "OperationNotPermitted", "", aws.ErrDenied},
		{detach, "DependencyViolation", "", aws.ErrInUse},
		{remove, "InvalidNetworkInterfaceID.NotFound", "", nil},
		{remove, "InvalidNetworkInterface.InUse", "", nil}, // EC2 lags behind its own detachment
		{remove, "InvalidParameterValue", "Network interface 'eni-1' is currently in use.", nil},
		{remove, "DependencyViolation", "", nil},
		{remove, "UnauthorizedOperation", "", aws.ErrDenied},
	} {
		t.Run(test.action+" "+test.code, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.mustAcquire(0)
				w.end(0)
				time.Sleep(time.Hour)
				collect := func() error {
					ctx, cancel := context.WithTimeout(w.Context(), w.policy.Timeout)
					defer cancel()
					_, err := w.pool().Collect(ctx, less.Collection{FreeAfter: time.Minute, Max: -1})
					return err
				}
				w.EC2.FailAs(test.action, test.code, test.message, 1)
				if err := collect(); !errors.Is(err, test.is) {
					w.Errorf("got %v, want %v", err, test.is)
				}
				time.Sleep(time.Hour)
				w.EC2.FailAs(test.action, "", "", 0)
				if err := collect(); err != nil {
					w.Error(err)
				}
				s := w.State()
				if removed := test.code == "InvalidNetworkInterfaceID.NotFound"; len(s.ENIs) != 1 ||
					!removed && len(w.EC2.ENIs()) != 1 {
					w.Errorf("the registry has %v, EC2 %v", s.ENIs, w.EC2.ENIs())
				}
			})
		})
	}
}

// TestDetachedTwice: the answer to a detachment is lost. EC2 answers the SDK's second attempt with
// InvalidAttachmentID.NotFound, which counts as success.
func TestDetachedTwice(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(0)
	w.end(0)
	w.Age(time.Hour)
	w.EC2.Lose("DetachNetworkInterface", 1)
	if _, err := w.pool().Collect(t.Context(), less.Collection{FreeAfter: time.Minute, Max: -1}); err != nil {
		t.Error(err)
	}
	if n := len(w.EC2.ENIs()); n != 1 || w.EC2.Asked("DetachNetworkInterface") != 2 {
		t.Errorf("%d ENIs, %v", n, w.EC2.Calls())
	}
}
