// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// An AddrSet is a set of addresses. For IPv4 addresses, of which a node has thousands, it is faster than a Go map.
type AddrSet struct {
	// a hash table that is at most half full. An empty place contains 0. A used place contains the number of an
	// address: 1 plus the address's 32 bits
	ipv4   []uint64
	shift  int
	others map[netip.Addr]bool
}

// NewAddrSet returns an empty set for at most n addresses.
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
	place, n := s.placeOf(a)
	had = *place == n
	*place = n
	return had
}

// Has reports whether the set has the address.
func (s *AddrSet) Has(a netip.Addr) bool {
	if !a.Is4() {
		return s.others[a]
	}
	place, n := s.placeOf(a)
	return *place == n
}

// goldenFactor is 2^64 divided by the golden ratio. Multiplication by goldenFactor spreads neighbouring addresses over
// the hash table.
const goldenFactor = 0x9e3779b97f4a7c15

// placeOf returns the number of an IPv4 address, and the address's place in the hash table. The place contains this
// number, or 0 if the set does not have the address.
func (s *AddrSet) placeOf(a netip.Addr) (place *uint64, n uint64) {
	b := a.As4()
	n = uint64(binary.BigEndian.Uint32(b[:])) + 1
	for i := n * goldenFactor >> s.shift; ; i = (i + 1) % uint64(len(s.ipv4)) {
		if place = &s.ipv4[i]; *place == 0 || *place == n {
			return place, n
		}
	}
}
