// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// attachOther: another program attaches an ENI, with four addresses unless spec.Secondary has another number.
func (w *world) attachOther(spec aws.ENISpec) string {
	w.Helper()
	if spec.Secondary == 0 {
		spec.Secondary = 3
	}
	c := aws.New(w.cloud)
	eni, err := c.CreateENI(w.Context(), spec)
	if err == nil {
		_, err = c.AttachENI(w.Context(), eni.ID, w.ID, 0, 1)
	}
	if err != nil {
		w.Fatal(err)
	}
	return eni.ID
}

// uses reports whether the next pod gets an address of the ENI.
func (w *world) uses(eni string, pod int) bool {
	w.Helper()
	a, err := w.acquire(pod)
	if err != nil {
		w.Fatal(err)
	}
	return a.ID == eni
}

// TestOthersENI: an ENI of others serves pods if it is like the ENIs that the node would create. An ENI that was made
// for pods serves pods in any case.
func TestOthersENI(t *testing.T) {
	groups := func(ids ...string) aws.ENISpec { return aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: ids} }
	tagged := func(key, value string) aws.ENISpec {
		s := groups("sg-9")
		s.Tags = map[string]string{key: value}
		return s
	}
	for _, tt := range []struct {
		name string
		eni  aws.ENISpec
		set  func(*lease.Policy)
		want bool
	}{
		{"the same groups", groups("sg-2", "sg-1"), nil, true},
		{"another group", groups("sg-9"), nil, false},
		{"a group more", groups("sg-1", "sg-2", "sg-9"), nil, false},
		{"a group less", groups("sg-1"), nil, false},
		{"another subnet", aws.ENISpec{Subnet: "subnet-node", SecurityGroups: []string{"sg-1", "sg-2"}}, nil, false},
		{"another subnet, and any will do", aws.ENISpec{Subnet: "subnet-node",
			SecurityGroups: []string{"sg-1", "sg-2"}},
			func(p *lease.Policy) { p.SubnetTags = nil }, true},
		{"groups are left to the VPC", groups("sg-9"), func(p *lease.Policy) { p.SecurityGroups = []string{} }, true},
		{"the node makes no ENI", groups("sg-9"), func(p *lease.Policy) { p.Provision = lease.ProvisionAssign }, true},
		{"the node asks for nothing", groups("sg-9"), func(p *lease.Policy) {
			p.Provision = lease.ProvisionNone
		}, true},
		{"its tag says that it is for pods", tagged(book.TagPool, "default"), nil, true},
		{"new-interface, or a launch template, made it", tagged(book.TagManaged, "false"), nil, true},
		{"the original made it", aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{"sg-9"},
			Description: "CNI-ENI i-00000000000000001"}, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			w.policy.SecurityGroups = []string{"sg-1", "sg-2"}
			if tt.set != nil {
				tt.set(&w.policy)
			}
			eni := w.attachOther(tt.eni)
			if got := w.uses(eni, 1); got != tt.want {
				t.Errorf("pods get its addresses: %v, want %v: %q", got, tt.want, w.policy.Misfit(w.State().ENIs[eni]))
			}
			if why := w.policy.Misfit(w.State().ENIs[eni]); (why == "") != tt.want {
				t.Errorf("status says %q", why)
			}
			w.consistent()
		})
	}
}

// TestOthersENIDenied: the role has the policy that the command iam-policy prints. It allows changes only of ENIs with
// our tags, and the ENI of the original plugin has none. If EC2 refuses to assign addresses to this ENI, a growth
// creates an ENI of ours. If the role may assign no addresses at all, the growth creates no further ENI.
func TestOthersENIDenied(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", Description: "CNI-ENI " + w.ID})
	w.EC2.Fail("AssignPrivateIpAddresses", "UnauthorizedOperation", -1)
	w.policy.Batch = 3
	for n := range 4 + 3 {
		w.mustAcquire(n)
	}
	if _, err := w.acquire(7); !errors.Is(err, aws.ErrDenied) || !strings.Contains(err.Error(),
		"AssignPrivateIpAddresses") {
		t.Errorf("got %v", err)
	}
	if n := len(w.EC2.ENIs()); n != 3 {
		t.Errorf("%d ENIs", n)
	}
	w.consistent()
}

// TestOthersENIDeniedChosen: with the policy of TestOthersENIDenied, a pod gets its chosen address on an ENI of ours.
// Addresses that an operator allocates are also on an ENI of ours.
func TestOthersENIDeniedChosen(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", Description: "CNI-ENI " + w.ID})
	for n := range 4 {
		w.mustAcquire(n)
	}
	w.policy.Choice = lease.Choice{Addrs: []netip.Addr{netip.MustParseAddr("100.77.0.200")}}
	// EC2 refuses to assign the address to the other ENI. The growth then passes over this ENI, and creates one of
	// ours.
	w.EC2.Fail("AssignPrivateIpAddresses", "UnauthorizedOperation", 1)
	if a, err := w.acquire(5); err != nil || !slices.Equal(a.Addrs, w.policy.Choice.Addrs) {
		t.Errorf("the pod has %v: %v", a.Addrs, err)
	}
	if n := len(w.EC2.ENIs()); n != 3 {
		t.Errorf("%d ENIs", n)
	}
	w.policy.Choice.Addrs, w.policy.MaxENIs = []netip.Addr{netip.MustParseAddr("100.77.0.201")}, 3
	w.EC2.Fail("AssignPrivateIpAddresses", "UnauthorizedOperation", always)
	if _, err := w.acquire(6); !aws.NotAllowed(err) {
		t.Errorf("the role may assign nothing, and the pod has %v", err)
	}
	w.Forgive()
	w.EC2.Fail("AssignPrivateIpAddresses", "", 0)
	w.EC2.Fail("AssignPrivateIpAddresses", "UnauthorizedOperation", 1)
	if id, got, err := w.pool().Allocate(t.Context(), 2); err != nil || !w.State().ENIs[id].Managed {
		t.Errorf("%s got %v: %v", id, got, err)
	}
}

// TestOthersENINotAttached: an ENI without our tags was made for this node, and is not attached. The policy of
// TestOthersENIDenied forbids its attachment. A growth passes over this ENI, and gets addresses on ENIs of ours.
func TestOthersENINotAttached(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(0)
	stray, err := aws.New(w.cloud).CreateENI(t.Context(), aws.ENISpec{Subnet: "subnet-pod0",
		Description: book.Description(w.ID)})
	must(t, err)
	w.EC2.RefuseOn(stray.ID, book.AttachAction, "UnauthorizedOperation", "")
	w.EC2.Script("AssignPrivateIpAddresses", ec2sim.DoneLost, ec2sim.DoneLost)
	for n := range 12 {
		w.mustAcquire(1 + n)
	}
	if s := w.State(); len(s.Intents)+len(s.Refusals) > 0 {
		t.Errorf("intents %v, refusals %v", s.Intents, s.Refusals)
	}
	if all := w.EC2.ENIs(); len(all) != 4 || w.ENI(stray.ID).Status != "available" {
		t.Errorf("%+v", all)
	}
	w.consistent()
}

// TestOthersENILater: a change of the configuration counts for new pods. A running pod keeps its address, and the ENI
// of others gets and loses no addresses. ENIs of ours still serve pods with their old groups.
func TestOthersENILater(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.SecurityGroups = []string{"sg-1"}
	other := w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{"sg-1"}})
	if !w.uses(other, 1) {
		t.Fatal("it does not serve")
	}
	w.policy.SecurityGroups = []string{"sg-2"}
	if w.uses(other, 2) {
		t.Error("a pod got an address with the groups of before")
	}
	if !w.uses(other, 1) {
		t.Error("the running pod has lost its address")
	}
	ours := w.State().Leases
	l, _ := ours.At(w.State().Held(pod(2).Key)[0])
	w.policy.SecurityGroups = []string{"sg-3"}
	if !w.uses(l.ENI, 3) {
		t.Error("an ENI of ours does not serve with the groups that it was made with")
	}
	if e := w.State().ENIs[other]; e.Serving || len(e.Addrs) != 4 {
		t.Errorf("the ENI of others: %+v", e)
	}
	w.Age(hour)
	c := less.Collection{Max: -1}
	if _, err := w.pool().Collect(t.Context(), c); err != nil || len(w.EC2.ENIs()[1].Addrs) != 4 {
		t.Errorf("collected %+v: %v", c, err)
	}

	// The configuration has the groups of the ENI again, so the ENI serves pods again.
	w.policy.SecurityGroups = []string{"sg-1"}
	w.end(1)
	w.Age(hour)
	if !w.uses(other, 4) {
		t.Error("it has the right groups, and does not serve")
	}
	w.consistent()
}

// TestOthersENIUnknown: an ENI serves pods although nothing is known of its creator: after an upgrade, or if the role
// may not ask EC2.
func TestOthersENIUnknown(t *testing.T) {
	t.Run("upgrade", func(t *testing.T) {
		w := newWorld(t, "m5.large", 20)
		w.policy.SecurityGroups = []string{"sg-1"}
		other := w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{"sg-9"}})
		if err := w.pool().Learn(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.Edit(func(s *registry.State) {
			e := s.ENIs[other]
			e.Groups = nil
			s.ENIs[other] = e
			s.Rebuilt = registry.Rebuilt{}
		})
		if err := w.pool().Learn(t.Context()); err != nil || !w.uses(other, 1) {
			t.Errorf("it serves no more: %v", err)
		}
	})
	t.Run("denied", func(t *testing.T) {
		w := newWorld(t, "m5.large", 20)
		w.policy.SecurityGroups = []string{"sg-1"}
		other := w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{"sg-9"}})
		w.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", always)
		if !w.uses(other, 1) {
			t.Error("it does not serve")
		}
	})
}

// TestOthersENIFull: if the instance is full, the error of an ADD says which ENI of others takes a slot.
func TestOthersENIFull(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.SecurityGroups, w.policy.MaxENIs = []string{"sg-1"}, 2
	other := w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{"sg-9"}})
	_, err := w.acquire(1)
	if want := other + " serves no pods: its security groups are sg-9, and secGroupIds are sg-1"; !errors.Is(err,
		aws.ErrInstanceFull) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestOthersENISubnet: the node asks EC2 for the tags of a subnet only if these tags decide whether an ENI serves pods.
// An ADD that finds an address does not ask.
func TestOthersENISubnet(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	other := w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{"sg-1"}})
	for pod := range 3 {
		w.EC2.ResetCalls()
		if !w.uses(other, pod) {
			t.Errorf("pod %d does not get its address", pod)
		}
		if n := w.EC2.Asked("DescribeSubnets"); pod > 0 && len(w.EC2.Calls()) > 0 || pod == 0 && n != 1 {
			t.Errorf("pod %d: calls %v", pod, w.EC2.Calls())
		}
	}

	// EC2 refuses to describe subnets, so no ENI can be created either. The error names the refused call.
	w = newWorld(t, "m5.large", 20)
	w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{"sg-1"}})
	w.EC2.Fail("DescribeSubnets", "UnauthorizedOperation", always)
	if _, err := w.acquire(1); !errors.Is(err, aws.ErrDenied) || !strings.Contains(err.Error(), "DescribeSubnets") {
		t.Errorf("got %v", err)
	}
}

// TestOthersENIThrottled: EC2 throttles the call for the tags of subnets. An ADD that gets an address elsewhere does
// not wait for these tags.
func TestOthersENIThrottled(t *testing.T) {
	const action = "DescribeSubnets"
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.attachOther(aws.ENISpec{Subnet: "subnet-node"})
		w.mustAcquire(1)
		must(w, w.pool().NotBefore(w.Context(), action, registry.MostBackoff))
		w.EC2.ResetCalls()
		began := time.Now()
		w.mustAcquire(2)
		if n, took := w.EC2.Asked(action), time.Since(began); n > 0 || took > time.Second {
			w.Errorf("while EC2 throttles, it was asked %d times; the ADD took %v", n, took)
		}
		w.EC2.Fail(action, throttling, 3)
		time.Sleep(registry.MostBackoff)
		w.mustAcquire(3)
		if w.State().NotBefore[action].Before(began.Add(registry.MostBackoff)) {
			w.Error("no other process of the node knows that EC2 throttles")
		}
	})
}

// TestOthersENIAllocate: allocate-first-available passes over an ENI that the role may not change, such as the boot ENI
// with the policy that the command iam-policy prints.
func TestOthersENIAllocate(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(0)
	ours := w.EC2.ENIs()[1].ID
	w.policy = lease.Policy{}
	w.EC2.Script("AssignPrivateIpAddresses", denied)
	if id, got, err := w.pool().Allocate(t.Context(), 2); err != nil || id != ours || len(got) != 2 {
		t.Errorf("%v on %s, want two on %s: %v", got, id, ours, err)
	}
	w.EC2.Fail("AssignPrivateIpAddresses", "UnauthorizedOperation", always)
	if _, _, err := w.pool().Allocate(t.Context(), 2); !errors.Is(err, aws.ErrDenied) ||
		strings.Contains(err.Error(), "has room") {
		t.Errorf("the role may change none of them: %v", err)
	}
	w.consistent()
}

// TestMisfitAllocate: allocate-first-available passes over an ENI of others that serves no pods of its pool, also
// because of the tags of its subnet. If no other ENI has room, the error says why.
func TestMisfitAllocate(t *testing.T) {
	allocate := func(w *world) (string, error) {
		p := w.pool()
		p.Policy = lease.Policy{MinIndex: 1}
		id, _, err := p.Allocate(w.Context(), 2, w.policy)
		return id, err
	}
	for group, fits := range map[string]bool{"sg-1": true, "sg-9": false} {
		w := newWorld(t, "m5.large", 20)
		w.policy.SecurityGroups = []string{"sg-1"}
		other := w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{group}})
		id, err := allocate(w)
		if fits && (err != nil || id != other) {
			t.Errorf("%s has the right groups, and %s got the addresses: %v", other, id, err)
		}
		if fits {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), other+" serves no pods: its security groups are sg-9") {
			t.Errorf("%s got the addresses: %v", id, err)
		}
		w.mustAcquire(1)
		if id, err = allocate(w); err != nil || !w.State().ENIs[id].Managed {
			t.Errorf("%s got the addresses: %v", id, err)
		}
	}
}
