// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestAddrSetIsAMap: an AddrSet behaves like a map, even when it is full.
func TestAddrSetIsAMap(t *testing.T) {
	random := func() netip.Addr {
		b := [16]byte{0: 0xfd, 15: byte(rand.N(40))}
		if rand.N(4) == 0 {
			return netip.AddrFrom16(b)
		}
		return netip.AddrFrom4([4]byte{byte(rand.N(2) * 255), byte(rand.N(2) * 255), 0, b[15] + 220})
	}
	for n := range 200 {
		s, truth := NewAddrSet(n), map[netip.Addr]bool{}
		for len(truth) < n {
			a := random()
			if had := s.Add(a); had != truth[a] {
				t.Fatalf("adding %s: it was there: %v", a, had)
			}
			truth[a] = true
			if a := random(); s.Has(a) != truth[a] {
				t.Fatalf("%s: %v", a, !truth[a])
			}
		}
	}
	if NewAddrSet(0).Has(addr("0.0.0.0")) {
		t.Error("an empty set has an address")
	}
}
