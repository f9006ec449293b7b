// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// TestLeasedUnassignedByHand: an operator unassigns the address of a pod, and the pod ends before or after a
// collection. The next collection removes the address from the registry. This holds for each value of provision, and
// for interfaceIndex 0 and 1.
func TestLeasedUnassignedByHand(t *testing.T) {
	for _, provision := range []lease.Provision{lease.ProvisionFull, lease.ProvisionAssign, lease.ProvisionNone} {
		for _, first := range []int{0, 1} {
			for _, seen := range []bool{false, true} {
				name := fmt.Sprintf("provision %v, index %d, collected before %v", provision, first, seen)
				t.Run(name, func(t *testing.T) { leasedUnassigned(t, provision, first, seen) })
			}
		}
	}
}

func leasedUnassigned(t *testing.T, provision lease.Provision, first int, seen bool) {
	w := newWorld(t, "m5.large", 20)
	w.policy.MinIndex, w.policy.Batch = first, 4
	if first == 0 {
		w.policy.SubnetTags = nil
	}
	var pods []lease.Allocation
	for n := range 3 {
		a, err := w.acquire(n)
		must(t, err)
		pods = append(pods, a)
	}
	w.policy.Provision = provision
	w.Age(10 * time.Minute)
	for _, a := range pods[2].Addrs {
		w.unassignByHand(pods[2].ID, a)
	}
	if seen {
		w.collect()
	}
	w.end(2)
	w.Age(10 * time.Minute)
	w.collect()
	s := w.State()
	for _, a := range pods[2].Addrs {
		if id, _ := s.ENIOf(a); id != "" || s.Free.Has(a) || s.Leases.Has(a) {
			t.Errorf("%s is on %q by the registry, free %v, leased %v, and on no ENI", a, id, s.Free.Has(a),
				s.Leases.Has(a))
		}
	}
}

// unassignByHand unassigns an address as an operator does. The address must not be the primary address of the ENI.
func (w *world) unassignByHand(eni string, a netip.Addr) {
	w.Helper()
	if e := w.ENI(eni); slices.Index(e.Addrs, a) == 0 {
		w.Fatalf("%s is the primary address", a)
	}
	must(w, w.byHand().Unassign(w.Context(), eni, a))
}

// TestLeasedUnassignedByHandBusy: an operator unassigns the address of a pod, the pod ends, and then the ENI gets new
// addresses. EC2 may not show new addresses yet. But the old address cools, so it is not new, and a collection removes
// it.
func TestLeasedUnassignedByHandBusy(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch, w.policy.ReuseWait = 3, hour
	w.mustAcquire(0)
	a := w.mustAcquire(1)
	w.Age(10 * time.Minute)
	w.unassignByHand(w.EC2.ENIs()[1].ID, a)
	w.end(1)
	w.Age(time.Minute)
	w.policy.Batch = 6
	for n := 2; n < 6; n++ {
		w.mustAcquire(n)
	}
	w.collect()
	if s := w.State(); s.Free.Has(a) || s.Leases.Has(a) {
		t.Errorf("%s is free %v, leased %v, and on no ENI", a, s.Free.Has(a), s.Leases.Has(a))
	}
}
