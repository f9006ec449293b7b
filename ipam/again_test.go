// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// routeTo adds a veth pair on the node, and a route to the address through this pair, as for a routed pod.
func (w *world) routeTo(a netip.Addr) {
	w.Helper()
	must(w, nl.Wiring{
		{NS: w.Host, Object: nl.Veth{Name: "veth0", Peer: "veth1", PeerNS: w.Host}},
		{NS: w.Host, Object: nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: "veth0"}},
	}.Add())
}

// TestAgainAfterKill: the node routes an address to another pod. An ADD reserves this address, and is killed before it
// looks for such a route. The runtime repeats the ADD without a DEL. The repeated ADD gets a different address.
func TestAgainAfterKill(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 3
	w.mustAcquire(1)
	eni, addrs := lease.Candidates(w.State(), w.policy, time.Now())
	w.Edit(func(s *registry.State) {
		must(t, s.Reserve(addrs[0], registry.Lease{Key: pod(2).Key, ENI: eni, Since: time.Now()}))
	})
	w.routeTo(addrs[0])
	if b := w.mustAcquire(2); b == addrs[0] {
		t.Errorf("the pod has %s, which the node routes to another", b)
	}
	if l, _ := w.State().Leases.At(addrs[0]); l.Key != (registry.Key{}) || !l.Bound {
		t.Errorf("the lease of the other pod: %+v", l)
	}
	w.consistent()
}

// TestAgain: the runtime repeats an ADD that has succeeded. The node has a route to the address of the pod. The pod
// keeps the address, because the route is its own.
func TestAgain(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	o := pod(1)
	var ns *nl.NS
	ns, o.NetNS = nltest.NS(t, "pod")
	a, err := w.pool().Acquire(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	must(t, nl.Wiring{{NS: ns, Object: nl.Addr{Prefix: netip.PrefixFrom(a.Addrs[0], 32), Dev: "lo"}}}.Add())
	w.routeTo(a.Addrs[0])
	if b, err := w.pool().Acquire(t.Context(), o); err != nil || b.Addrs[0] != a.Addrs[0] {
		t.Errorf("the pod had %v, and has %v after the same ADD (%v)", a.Addrs, b.Addrs, err)
	}
}

// TestAgainWithoutOneFamily: the ENI loses the IPv4 address of a pod that also has an IPv6 address. The repeated ADD
// gets an address of each family, and a new IPv4 address.
func TestAgainWithoutOneFamily(t *testing.T) {
	w := newWorld6(t, "m5.large")
	w.policy.Families = []lease.Family{lease.IPv4, lease.IPv6}
	w.policy.ReuseWait = 0
	before, err := w.acquire(1)
	must(t, err)
	w.Edit(func(s *registry.State) {
		e := s.ENIs[before.ID]
		e.Addrs = slices.DeleteFunc(e.Addrs, func(a netip.Addr) bool { return a == before.Addrs[0] })
		s.ENIs[before.ID] = e
	})
	after, err := w.acquire(1)
	must(t, err)
	if len(after.Addrs) != 2 || after.Addrs[0] == before.Addrs[0] {
		t.Errorf("the pod had %v, and has %v", before.Addrs, after.Addrs)
	}
	if got := len(w.State().Held(pod(1).Key)); got != 2 {
		t.Errorf("the pod has %d leases", got)
	}
}

// TestAgainInOrder: a repeated ADD also returns the addresses in the order of ipFamilies.
func TestAgainInOrder(t *testing.T) {
	for _, families := range [][]lease.Family{{lease.IPv4, lease.IPv6}, {lease.IPv6, lease.IPv4}} {
		w := newWorld6(t, "m5.large")
		w.policy.Families = families
		first, err := w.acquire(1)
		must(t, err)
		again, err := w.acquire(1)
		if err != nil || !slices.Equal(again.Addrs, first.Addrs) || nl.FamilyOf(first.Addrs[0]) != families[0] {
			t.Errorf("%v: the pod had %v, and has %v after the same ADD (%v)", families, first.Addrs, again.Addrs, err)
		}
	}
}
