// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/codec"
)

// ErrLeased means that an address is another attachment's.
var ErrLeased = errors.New("address is leased")

// A State is the content of the registry. An address is in Free or in Leases,
// never in both.
type State struct {
	Free      codec.Entries[time.Time] // since when; the zero time means that it was never used
	Leases    codec.Entries[Lease]
	ENIs      map[string]ENI           // by ID
	VPCs      map[string]VPC           // by ID
	Intents   map[string]Intent        // by client token
	Wishes    map[string]Wish          // by attachment: an ADD waits for an address
	Failures  map[string]Failure       // by network and pool: why it has not got the addresses that it asked EC2 for
	NotBefore map[string]time.Time     // by EC2 action: this node does not call it again before
	Gone      map[netip.Addr]time.Time // when we unassigned it: the metadata service may list it for minutes yet
	Warm      map[string]Warm          // by pool: what the configuration asks for
	Instance  Instance

	// Of the file that was read.
	unknown map[string]string // top-level fields of a later release, as they stand
	size    int
}

// An Attachment is CNI's key of one interface of one container.
type Attachment = types.GCAttachment

// A Key names an attachment among all networks of a node.
type Key struct {
	Network string `json:"network"`
	Attachment
}

func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// A Lease says who has an address.
type Lease struct {
	Key
	PodNamespace string    `json:"podNamespace,omitempty"`
	PodName      string    `json:"podName,omitempty"`
	NetNS        string    `json:"netns,omitempty"` // path of the pod's namespace
	ENI          string    `json:"eni"`
	Bound        bool      `json:"bound,omitempty"` // the kernel has shown the address in the pod; before, it is only reserved
	Since        time.Time `json:"since"`
	MissingSince time.Time `json:"missingSince,omitzero"` // when a collector first saw that NetNS is gone
}

// An ENI is what the warm path needs to know of a network interface, so that it
// need not ask anybody.
type ENI struct {
	MAC      string       `json:"mac"`
	Link     string       `json:"link,omitempty"` // its name on the host when it was last seen: a hint, MAC decides
	Index    int          `json:"index"`          // device index on its network card
	Card     int          `json:"card,omitempty"`
	Subnet   string       `json:"subnet"`
	CIDR     netip.Prefix `json:"cidr,omitzero"`  // the subnet's; zero if it has no IPv4
	CIDR6    netip.Prefix `json:"cidr6,omitzero"` // the subnet's; zero if it has no IPv6
	VPC      string       `json:"vpc"`
	Addrs    []netip.Addr `json:"addrs"` // of both families; the primary first, if it has IPv4
	Prefixes []Prefix     `json:"prefixes,omitempty"`
	Pool     string       `json:"pool,omitempty"`     // that it serves; empty: the default one
	Serving  bool         `json:"serving,omitempty"`  // what to keep of it is known: an ADD has used its pool, or its tags say so
	Foreign  bool         `json:"foreign,omitempty"`  // somebody else's: it is left alone
	Managed  bool         `json:"managed,omitempty"`  // made by us
	Draining bool         `json:"draining,omitempty"` // on its way out: takes no more pods
	Keep     bool         `json:"keep,omitempty"`     // skipDeallocation: its addresses are never unassigned
	Read     time.Time    `json:"read"`               // when EC2 or the metadata service said so
	Grown    time.Time    `json:"grown,omitzero"`     // when EC2 has last given it addresses
}

// A Prefix is a block of addresses that is delegated to an ENI: a /28, or a /80 of
// IPv6. Its addresses are leased one by one; those that never were have no entry
// in Free.
type Prefix struct {
	CIDR  netip.Prefix `json:"cidr"`
	Since time.Time    `json:"since"` // it was delegated; the zero time if nobody knows
}

// Primary is the address that the ENI was born with: it serves pods, and is
// never unassigned. It is not valid for an ENI without IPv4.
func (e ENI) Primary() netip.Addr {
	if len(e.Addrs) == 0 || !e.Addrs[0].Is4() {
		return netip.Addr{}
	}
	return e.Addrs[0]
}

// Has tells whether the ENI carries the address, by itself or in a prefix.
func (e ENI) Has(a netip.Addr) bool {
	return slices.Contains(e.Addrs, a) || slices.ContainsFunc(e.Prefixes, func(p Prefix) bool { return p.CIDR.Contains(a) })
}

// Slots is how many of the addresses that an ENI can have of a family are taken: a
// prefix counts as one (EC2 user guide, "Prefix delegation").
func (e ENI) Slots(v6 bool) int {
	n := 0
	for _, a := range e.Addrs {
		if a.Is6() == v6 {
			n++
		}
	}
	for _, p := range e.Prefixes {
		if p.CIDR.Addr().Is6() == v6 {
			n++
		}
	}
	return n
}

// A VPC is what routes are made of.
type VPC struct {
	CIDRs     []netip.Prefix `json:"cidrs"`            // of IPv4, the VPC's primary CIDR first
	CIDRs6    []netip.Prefix `json:"cidrs6,omitempty"` // of IPv6
	Peers     []netip.Prefix `json:"peers,omitempty"`
	PeersRead time.Time      `json:"peersRead,omitzero"` // zero: never asked
}

// A Warm is how many free addresses a pool is to have at least and at most.
type Warm struct {
	Min int `json:"min"`
	Max int `json:"max"` // 0: as many as Min
}

// Left is how many free addresses a collection leaves to the pool. What is between Min
// and Max may come and go without EC2 being asked.
func (w Warm) Left() int { return max(w.Min, w.Max) }

// An Instance is what growth needs to know of the machine.
type Instance struct {
	ID         string `json:"id,omitempty"`
	Type       string `json:"type,omitempty"`
	Zone       string `json:"zone,omitempty"`
	ENIs       int    `json:"enis,omitempty"`       // most ENIs that it can have, all cards together; 0 if not known yet
	IPv4PerENI int    `json:"ipv4PerENI,omitempty"` // most private IPv4 addresses of an ENI, its primary one included; 0 if not known yet
	IPv6PerENI int    `json:"ipv6PerENI,omitempty"` // the same of IPv6; 0 if the type has none, or if it is not known yet
	Cards      []int  `json:"cards,omitempty"`      // most ENIs with addresses on each network card, by its index; none if it has one card

	// FullUntil is set when EC2 has said that the instance can have no more ENIs,
	// whatever we know: somebody else has attached some.
	FullUntil time.Time `json:"fullUntil,omitzero"`
}

// An Intent is an EC2 call that may have been made: it is written before the
// call, and removed when what came of it is recorded.
type Intent struct {
	Action string    `json:"action"`
	ENI    string    `json:"eni,omitempty"`
	Since  time.Time `json:"since"`
}

// InDoubt is the action of an intent to look again at what a new registry has learnt,
// when EC2 has settled: see package ipam, doubt.go.
const InDoubt = "DescribeNetworkInterfaces again, for addresses in doubt"

// Doubt tells since when what the registry has learnt is in doubt, if it is.
func (s *State) Doubt() (since time.Time, ok bool) {
	for _, i := range s.Intents {
		if i.Action == InDoubt {
			return i.Since, true
		}
	}
	return time.Time{}, false
}

// A Wish is an ADD that waits for an address.
type Wish struct {
	Pool  string    `json:"pool,omitempty"` // of which
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // then its process has given up
}

// A Failure is why a process has not got from EC2 what the ADDs of a pool wait for.
type Failure struct {
	Text  string    `json:"text"`
	Hint  string    `json:"hint,omitempty"` // what an operator can do
	Began time.Time `json:"began,omitzero"` // to ask, with the wishes that there were; zero: it asks again
	Since time.Time `json:"since"`
}

// Blank tells whether nothing is known yet, not even that no address is in use.
func (s *State) Blank() bool { return len(s.ENIs) == 0 && s.Free.Len() == 0 && s.Leases.Len() == 0 }

// Held lists the addresses of an attachment, in order.
func (s *State) Held(k Key) []netip.Addr {
	var held []netip.Addr
	for a, l := range s.Leases.Naming(k.ContainerID) {
		if l.Key == k {
			held = append(held, a)
		}
	}
	return held
}

// Reserve gives a to the lease's attachment. It fails with ErrLeased if a is another's.
func (s *State) Reserve(a netip.Addr, l Lease) error {
	if old, ok := s.Leases.At(a); ok && old.Key != l.Key {
		return fmt.Errorf("reserve %s for %s: %w by %s", a, l.Key, ErrLeased, old.Key)
	}
	s.Free.Delete(a)
	s.Leases.Set(a, l)
	return nil
}

// Release ends the leases that match, whose addresses are free since now, and
// returns these.
func (s *State) Release(now time.Time, match func(netip.Addr, Lease) bool) []netip.Addr {
	var released []netip.Addr
	for a, l := range s.Leases.All() {
		if match(a, l) {
			s.end(now, a)
			released = append(released, a)
		}
	}
	return released
}

// ReleaseOf ends the leases of an attachment, whose addresses are free since now. The
// hints are addresses that it is said to have: a lease of one that has no key ends, too.
func (s *State) ReleaseOf(k Key, now time.Time, hints ...netip.Addr) {
	for _, a := range s.Held(k) {
		s.end(now, a)
	}
	for _, a := range hints {
		if l, ok := s.Leases.At(a); ok && l.Key == (Key{}) {
			s.end(now, a)
		}
	}
}

// end ends a lease.
func (s *State) end(now time.Time, a netip.Addr) {
	s.Leases.Delete(a)
	s.Free.Set(a, now)
}

// Forget drops addresses that are no longer the node's. A leased one stays.
func (s *State) Forget(addrs ...netip.Addr) {
	for _, a := range addrs {
		s.Free.Delete(a)
	}
}

// Drop forgets an ENI and the free addresses that it carries.
func (s *State) Drop(eni string) {
	e := s.ENIs[eni]
	for a := range s.Free.Keys() {
		if e.Has(a) {
			s.Free.Delete(a)
		}
	}
	delete(s.ENIs, eni)
}

// ENIOf returns the ENI that carries a, and its ID, which is empty if none does.
func (s *State) ENIOf(a netip.Addr) (string, ENI) {
	for id, e := range s.ENIs {
		if e.Has(a) {
			return id, e
		}
	}
	return "", ENI{}
}

// check holds what a State promises.
func (s *State) check() error {
	for a := range s.Free.Keys() {
		if l, ok := s.Leases.At(a); ok {
			return fmt.Errorf("%s is free, and leased by %s", a, l.Key)
		}
	}
	var lows []uint64 // half of each address is enough to see that no two are the same
	for _, e := range s.ENIs {
		for _, a := range e.Addrs {
			b := a.As16()
			lows = append(lows, binary.BigEndian.Uint64(b[8:]))
		}
	}
	slices.Sort(lows)
	for i := range len(lows) - 1 {
		if lows[i] == lows[i+1] {
			return s.twice()
		}
	}
	return nil
}

// twice says which address is on two ENIs, or on one twice, if there is one.
func (s *State) twice() error {
	by := map[netip.Addr]string{}
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		for _, a := range s.ENIs[id].Addrs {
			if other, ok := by[a]; ok {
				return fmt.Errorf("%s is on %s and on %s", a, other, id)
			}
			by[a] = id
		}
	}
	return nil
}
