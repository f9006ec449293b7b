// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// An AddrSet is a set of addresses. It is fast for thousands of IPv4 addresses: Add and Has take about ten
// instructions. A map takes eight times as many.
type AddrSet struct {
	ipv4   []uint64 // a hash table, at most half full; a place has an address as a number, or 0 if it is empty
	shift  int
	others map[netip.Addr]bool
}

// NewAddrSet returns an empty set for at most n addresses. The set has no room for more addresses.
func NewAddrSet(n int) *AddrSet {
	places := bits.Len(uint(2 * n))
	return &AddrSet{ipv4: make([]uint64, 1<<places), shift: 64 - places, others: map[netip.Addr]bool{}}
}

// Add adds an address. Add reports whether the set had the address already.
func (s *AddrSet) Add(a netip.Addr) (had bool) {
	if !a.Is4() {
		had = s.others[a]
		s.others[a] = true
		return had
	}
	place, n := s.find(a)
	had = *place == n
	*place = n
	return had
}

// Has reports whether the set has the address.
func (s *AddrSet) Has(a netip.Addr) bool {
	if !a.Is4() {
		return s.others[a]
	}
	place, n := s.find(a)
	return *place == n
}

// factor is 2^64 divided by the golden ratio. A product with factor spreads numbers that are near each other.
const factor = 0x9e3779b97f4a7c15

// find returns the place of an IPv4 address in the hash table, and the address as a number. If the set does not have
// the address, the place is empty.
func (s *AddrSet) find(a netip.Addr) (place *uint64, n uint64) {
	b := a.As4()
	n = uint64(binary.BigEndian.Uint32(b[:])) + 1
	for i := n * factor >> s.shift; ; i = (i + 1) % uint64(len(s.ipv4)) {
		if place = &s.ipv4[i]; *place == 0 || *place == n {
			return place, n
		}
	}
}
