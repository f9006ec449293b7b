// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestPlaces: the ENI with the most leases comes first. If ADDs still wait for the link of an ENI, this ENI comes after
// the ENIs with links. An ENI whose link has vanished or never came is not in the list.
func TestPlaces(t *testing.T) {
	r, err := registry.Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	var s *registry.State
	err = r.Change(t.Context(), func(state *registry.State) {
		s = state
		add := func(id string, index int, e registry.ENI) {
			for i := range 3 {
				a := netip.AddrFrom4([4]byte{10, 0, byte(index), byte(10 + i)})
				e.Addrs = append(e.Addrs, a)
				if i < e.Card { // this test uses Card for the number of leases
					s.Leases.Set(a, registry.Lease{ENI: id})
				} else {
					s.Free.Set(a, time.Time{})
				}
			}
			e.Index, e.Card, e.CIDR = index, 0, netip.MustParsePrefix("10.0.0.0/16")
			s.ENIs[id] = e
		}
		add("emptier", 1, registry.ENI{Card: 0, Link: "eth1"})
		add("fuller", 2, registry.ENI{Card: 1, Link: "eth2"})
		add("awaited", 3, registry.ENI{Card: 2, Missed: now})
		add("vanished", 4, registry.ENI{Card: 2, Link: "eth4", Missed: now})
		add("never came", 5, registry.ENI{Card: 2, Missed: now.Add(-registry.LinkPatience)})
	})
	if err != nil {
		t.Fatal(err)
	}
	policy := Policy{MinIndex: 1, Families: []Family{IPv4}, Warm: registry.Warm{Min: 7}}
	var ids []string
	for _, p := range Places(s, policy, now) {
		ids = append(ids, p.ID)
	}
	if want := []string{"fuller", "emptier", "awaited"}; !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
	for id, e := range s.ENIs {
		e.Serving = true
		s.ENIs[id] = e
	}
	if n := Ready(s, "", now); n != 6 || !(&Pool{Policy: policy}).Short(s, now) {
		t.Errorf("%d addresses are ready, want 2, 3 and 1", n)
	}
}

// TestPruneOwned: a pod has chosen its address, and its network has a long reuseIPWait. An ADD of another network must
// leave the pod, and the time when the address became free, in the registry.
func TestPruneOwned(t *testing.T) {
	r, err := registry.Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	now, owned, other := time.Now(), netip.MustParseAddr("fd00::1:5"), netip.MustParseAddr("fd00::1:6")
	err = r.Change(t.Context(), func(s *registry.State) {
		s.ENIs["eni"] = registry.ENI{Prefixes: []registry.Prefix{{CIDR: netip.MustParsePrefix("fd00::/80")}}}
		s.Owners[owned] = registry.Pod{Namespace: "default", Name: "db-0"}
		for _, a := range []netip.Addr{owned, other} {
			s.Free.Set(a, now.Add(-time.Hour))
		}
		pruneState(s, Policy{ReuseWait: time.Minute}, now)
		if len(s.Owners) != 1 || !s.Free.Has(owned) || s.Free.Has(other) {
			t.Errorf("after an hour: %v", s.Owners)
		}
		pruneState(s, Policy{ReuseWait: time.Minute}, now.Add(maxReuseWait*time.Second))
		if len(s.Owners) != 0 || s.Free.Has(owned) {
			t.Errorf("after a day: %v", s.Owners)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
