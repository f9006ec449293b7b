// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Place is an ENI that serves a pool, with the number of its leased addresses.
type Place struct {
	ID string
	registry.ENI
	leased int     // number of the ENI's leased addresses
	blocks []block // the ENI's prefixes
}

// A block is a prefix of an ENI, and the number of leased addresses in the prefix.
type block struct {
	netip.Prefix
	leased int
}

// isFull reports whether all addresses of the block are leased. An IPv6 prefix is never full.
func (b block) isFull() bool { return b.Addr().Is4() && b.leased == 1<<(32-b.Bits()) }

// Serves reports whether the device index of the ENI allows the ENI to serve pods. The boot ENI can be at any index,
// but serves pods only if interfaceIndex is 0.
func (policy Policy) Serves(e registry.ENI) bool {
	if e.IsBoot() {
		return policy.MinIndex == 0
	}
	return e.Index >= policy.MinIndex && (e.Card == 0 || e.Index > 0)
}

// usesENI reports whether pods of the policy's pool can get addresses of an ENI. This depends on the configuration and
// on the state of the ENI.
func (policy Policy) usesENI(id string, e registry.ENI) bool {
	if wanted := policy.Choice.ENI; wanted != "" {
		return id == wanted && !e.IsBoot() && !e.Draining && !e.Foreign && !e.Managed && policy.Choice.Allows(e.Tags)
	}
	return policy.Serves(e) && e.Pool == policy.Pool && !e.Draining && !e.Foreign && !e.Retired &&
		policy.Misfit(e) == ""
}

// Apart returns the name of a pod that uses the ENI, if the pod of this Choice cannot share the ENI with that pod. Two
// pods cannot share an ENI if one of them has or wants the whole ENI. An ENI that a pod can have as a whole is in a
// derived pool: see derivedName. So a pod that asks neither for an ENI nor for a whole ENI gets no address of such an
// ENI.
func (c Choice) Apart(s *registry.State, id string) (user string) {
	if c.ENI == "" && !c.Exclusive {
		return ""
	}
	for _, l := range s.Leases.All() {
		if l.ENI == id && (c.Exclusive || l.Exclusive) {
			return cmp.Or(l.PodOf(), l.ContainerID, l.NetNS, "a pod")
		}
	}
	return ""
}

// Places lists the ENIs that serve the policy's pool. The ENI with the most leases comes first, so that other ENIs
// become empty, and a collection can release them. An ENI whose link has not appeared yet comes last. An ENI that has
// lost its link is not in the list.
func Places(s *registry.State, policy Policy, now time.Time) []Place {
	var ps []Place
	leased := isLeasedFunc(s)
	for id, e := range s.ENIs {
		if policy.usesENI(id, e) && !e.NoLink(now) && policy.Choice.Apart(s, id) == "" {
			ps = append(ps, newPlace(s, id, e, leased))
		}
	}
	slices.SortFunc(ps, func(a, b Place) int {
		return cmp.Or(a.lacksLink()-b.lacksLink(), b.leased-a.leased, cmp.Compare(a.Card, b.Card),
			cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	return ps
}

// lacksLink returns 1 if the ENI's link is not on the node yet, and otherwise 0. Places sorts by this number.
func (p Place) lacksLink() int {
	if p.Missed.IsZero() {
		return 0
	}
	return 1
}

// isLeasedFunc returns a function that does what Leases.Has does, but faster if there are many addresses.
func isLeasedFunc(s *registry.State) func(netip.Addr) bool {
	const few = 64
	n := 0
	for _, e := range s.ENIs {
		n += len(e.Addrs)
	}
	if n < few || s.Leases.Len() < few {
		return s.Leases.Has
	}
	all := registry.NewAddrSet(s.Leases.Len())
	for a := range s.Leases.Keys() {
		all.Add(a)
	}
	return all.Has
}

// newPlace returns the Place of an ENI, and counts the ENI's leased addresses.
func newPlace(s *registry.State, id string, e registry.ENI, leased func(netip.Addr) bool) Place {
	p := Place{ID: id, ENI: e}
	for _, a := range e.Addrs {
		if leased(a) {
			p.leased++
		}
	}
	p.blocks = make([]block, 0, len(e.Prefixes))
	for _, b := range e.Prefixes {
		n := s.Leases.Count(b.CIDR)
		p.blocks = append(p.blocks, block{b.CIDR, n})
		p.leased += n
	}
	return p
}

// Candidates chooses the addresses to lease next, one of each family. It chooses all of them on the same ENI, because
// an interface of a pod has one ENI. If no ENI has a free address of each family, Candidates returns nil.
func Candidates(s *registry.State, policy Policy, now time.Time) (eni string, addrs []netip.Addr) {
	for _, p := range Places(s, policy, now) {
		if addrs := p.Pick(s, policy, now); len(addrs) == len(policy.Families) {
			return p.ID, addrs
		}
	}
	return "", nil
}

// Pick chooses a free address of each family. If the ENI has no free address of a family, Pick leaves out this family.
func (p Place) Pick(s *registry.State, policy Policy, now time.Time) []netip.Addr {
	var addrs []netip.Addr
	cutoff := now.Add(-policy.ReuseWait)
	if since, ok := policy.Unconfirmed(s); ok && since.Before(cutoff) {
		cutoff = since
	}
	for _, f := range policy.Families {
		a := p.pick(s, policy, f, cutoff)
		if a.IsValid() {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// Unconfirmed reports whether the registry has unconfirmed addresses that pods of the pool must not get, and since
// when. On a node that changes nothing in EC2, pods may get unconfirmed addresses.
func (policy Policy) Unconfirmed(s *registry.State) (since time.Time, ok bool) {
	since, ok = s.Unconfirmed()
	return since, ok && (policy.Provision != ProvisionNone || s.Rebuilt.Changes)
}

// pick chooses a free address of one family, or returns the zero address.
func (p Place) pick(s *registry.State, policy Policy, f Family, cutoff time.Time) netip.Addr {
	if a, chosen := policy.Choice.Addr(f); chosen {
		if p.Has(a) && policy.Choice.hasCooled(s, a, cutoff) {
			return a
		}
		return netip.Addr{}
	}
	if a := p.pickDelegated(s, f, cutoff); a.IsValid() {
		return a
	}
	return p.pickAssigned(s, f, cutoff)
}

// pickAssigned chooses an address of the ENI that is in no prefix: the address that has been free the longest. It
// leaves out addresses that became free after cutoff, because other hosts may still remember the earlier pod.
func (p Place) pickAssigned(s *registry.State, f Family, cutoff time.Time) (best netip.Addr) {
	if len(p.blocks) == 0 && p.leased == len(p.Addrs) {
		return best // the ENI is full, like most ENIs of a large node
	}
	var oldest time.Time
	for _, a := range p.Addrs {
		since, free := s.Free.At(a)
		if !free || nl.FamilyOf(a) != f || !since.Before(cutoff) || ToRelease(s, a) {
			continue
		}
		if !best.IsValid() || since.Before(oldest) {
			best, oldest = a, since
		}
	}
	return best
}

// pickDelegated chooses an address of a prefix of the ENI. It begins with the prefix that has the most leases, so that
// other prefixes become empty.
func (p Place) pickDelegated(s *registry.State, f Family, cutoff time.Time) netip.Addr {
	var blocks []block
	for _, b := range p.blocks {
		if nl.FamilyOf(b.Addr()) == f && !b.isFull() {
			blocks = append(blocks, b)
		}
	}
	slices.SortFunc(blocks, func(a, b block) int {
		return cmp.Or(b.leased-a.leased, a.Addr().Compare(b.Addr()))
	})
	for _, b := range blocks {
		if a := pickWithin(s, b.Prefix, cutoff); a.IsValid() {
			return a
		}
	}
	return netip.Addr{}
}

// pickWithin chooses an address of a prefix. In a /28, it prefers an address that was never used. Otherwise it chooses
// the address that has been free the longest. A /80 has too many addresses to list, so pickWithin takes a random
// address.
func pickWithin(s *registry.State, b netip.Prefix, cutoff time.Time) (best netip.Addr) {
	const few, tries = 8, 16
	if b.Addr().BitLen()-b.Bits() > few {
		for range tries {
			if a := randomAddr(b); isUsable(s, a, cutoff) {
				return a
			}
		}
		return best
	}
	var oldest time.Time
	for a := b.Masked().Addr(); b.Contains(a); a = a.Next() {
		since, _ := s.Free.At(a)
		if isUsable(s, a, cutoff) && (!best.IsValid() || since.Before(oldest)) {
			best, oldest = a, since
		}
	}
	return best
}

// isUsable reports whether an address of a prefix has no lease, and did not become free after cutoff.
func isUsable(s *registry.State, a netip.Addr, cutoff time.Time) bool {
	since, free := s.Free.At(a)
	return !s.Leases.Has(a) && (!free || since.Before(cutoff))
}

// randomAddr returns a random address of an IPv6 prefix. It never returns the first address, which may be the anycast
// address of the routers (RFC 4291, section 2.6.1).
func randomAddr(b netip.Prefix) netip.Addr {
	raw := b.Masked().Addr().As16()
	for i := (b.Bits() + 7) / 8; i < len(raw); i++ {
		raw[i] = byte(rand.UintN(256))
	}
	raw[len(raw)-1] |= 1
	return netip.AddrFrom16(raw)
}
