// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// BlockSize is the number of addresses in a /28 prefix. EC2 reserves none of these addresses, so each address can serve
// a pod.
const BlockSize = 16

// Room returns how many more addresses or prefixes the ENI e can get in the family f.
func Room(s *registry.State, e registry.ENI, f lease.Family) int {
	if f == lease.IPv6 {
		return s.Instance.IPv6PerENI - e.Assigned(netip.Addr.Is6)
	}
	return s.Instance.IPv4PerENI - e.Assigned(netip.Addr.Is4)
}

// BlocksFor returns how many /28 prefixes are enough for the given number of addresses.
func BlocksFor(addrs int) int { return (addrs + BlockSize - 1) / BlockSize }

// AddAddrs records addresses of an ENI as free since the time freeSince. A zero freeSince means that EC2 has just
// assigned the addresses. They need not cool, because no pod of this node has had them.
func AddAddrs(s *registry.State, id string, addrs []netip.Addr, freeSince time.Time) {
	e, known := s.ENIs[id]
	if !known {
		return // the registry was lost meanwhile: Learn will find the ENI and its addresses
	}
	for _, a := range addrs {
		delete(s.Gone, a)
		if slices.Contains(e.Addrs, a) {
			continue
		}
		e.Addrs = append(e.Addrs, a)
		if !s.Leases.Has(a) {
			s.Free.Set(a, freeSince)
		}
		e.Grown = time.Now()
	}
	s.ENIs[id] = e
}

// AddPrefixes records prefixes of an ENI. The argument delegatedSince is the time when this node first saw the
// prefixes.
func AddPrefixes(s *registry.State, id string, cidrs []netip.Prefix, delegatedSince time.Time) {
	e, known := s.ENIs[id]
	if !known {
		return
	}
	for _, c := range cidrs {
		delete(s.Gone, c.Addr())
		if !e.HasPrefix(c) {
			e.Prefixes = append(e.Prefixes, registry.Prefix{CIDR: c, Since: delegatedSince})
		}
	}
	// A new ENI in an IPv6-only subnet may have only prefixes. In this case, AddAddrs has not set Grown.
	if e.Grown.IsZero() && len(cidrs) > 0 {
		e.Grown = time.Now()
	}
	s.ENIs[id] = e
}

// CoolPrefixes records that the addresses of IPv4 prefixes became free at the time freeSince. It leaves out IPv6
// prefixes, because a /80 has too many addresses to list. It also leaves out addresses that are already leased or free
// in the registry. If freeSince is zero, CoolPrefixes does nothing.
func CoolPrefixes(s *registry.State, cidrs []netip.Prefix, freeSince time.Time) {
	for _, c := range cidrs {
		for a := c.Addr(); a.Is4() && c.Contains(a) && !freeSince.IsZero(); a = a.Next() {
			if !s.Leases.Has(a) && !s.Free.Has(a) {
				s.Free.Set(a, freeSince)
			}
		}
	}
}

// A Releasable has what one call to EC2 unassigns from an ENI: addresses or prefixes.
type Releasable struct {
	Addrs    map[netip.Addr]time.Time // each address, with the time when it became free
	Prefixes []registry.Prefix
	Within   map[netip.Addr]time.Time // the free addresses within Prefixes, with the time when each became free
}

// AddPrefix adds a prefix to Prefixes, and the prefix's free addresses to Within.
func (x *Releasable) AddPrefix(s *registry.State, b registry.Prefix) {
	x.Prefixes = append(x.Prefixes, b)
	for a := range s.Free.Within(b.CIDR) {
		if x.Within == nil {
			x.Within = map[netip.Addr]time.Time{}
		}
		x.Within[a], _ = s.Free.At(a)
	}
}

// Empty reports whether x has neither addresses nor prefixes.
func (x Releasable) Empty() bool { return len(x.Addrs)+len(x.Prefixes) == 0 }

// List returns the addresses of x, in order.
func (x Releasable) List() []netip.Addr {
	return slices.SortedFunc(maps.Keys(x.Addrs), netip.Addr.Compare)
}

// Action returns the EC2 action that unassigns x. All addresses of x are of one family. If x has no addresses, it has
// only IPv4 prefixes, because the node never unassigns an IPv6 prefix.
func (x Releasable) Action() string {
	for a := range x.Addrs {
		return UnassignActionOf(a)
	}
	return UnassignAction
}

// CIDRs returns the CIDRs of the prefixes of x.
func (x Releasable) CIDRs() (cidrs []netip.Prefix) {
	for _, b := range x.Prefixes {
		cidrs = append(cidrs, b.CIDR)
	}
	return cidrs
}

// Only returns the addresses and prefixes of x for which keepAddr or keepPrefix returns true.
func (x Releasable) Only(keepAddr func(netip.Addr) bool, keepPrefix func(netip.Prefix) bool) Releasable {
	some := Releasable{Addrs: map[netip.Addr]time.Time{}, Within: x.Within}
	for a, since := range x.Addrs {
		if keepAddr(a) {
			some.Addrs[a] = since
		}
	}
	for _, b := range x.Prefixes {
		if keepPrefix(b.CIDR) {
			some.Prefixes = append(some.Prefixes, b)
		}
	}
	return some
}

// Without returns the addresses and prefixes of x that are not in other.
func (x Releasable) Without(other Releasable) Releasable {
	cidrs := other.CIDRs()
	return x.Only(func(a netip.Addr) bool { _, ok := other.Addrs[a]; return !ok },
		func(c netip.Prefix) bool { return !slices.Contains(cidrs, c) })
}

// Withdraw removes the addresses and prefixes in x from the registry. A process calls Withdraw before it asks EC2 to
// unassign x, or when EC2 shows that x has left the ENI. Leases of these addresses stay until their pods end.
func Withdraw(s *registry.State, id string, x Releasable) {
	e, known := s.ENIs[id]
	now := time.Now()
	for a := range x.Addrs {
		s.Forget(a)
		s.Gone[a] = now
	}
	e.Addrs = slices.DeleteFunc(e.Addrs, func(a netip.Addr) bool { _, ok := x.Addrs[a]; return ok })
	for _, b := range x.Prefixes {
		s.Forget(slices.Collect(s.Free.Within(b.CIDR))...)
		s.Gone[b.CIDR.Addr()] = now
	}
	e.Prefixes = slices.DeleteFunc(e.Prefixes, func(b registry.Prefix) bool {
		return slices.ContainsFunc(x.Prefixes, func(gone registry.Prefix) bool { return gone.CIDR == b.CIDR })
	})
	if known {
		s.ENIs[id] = e
	}
}

// Restore puts the addresses and prefixes in x back into the registry, with the times at which they became free. A
// process calls Restore if EC2 has not unassigned x.
func Restore(s *registry.State, id string, x Releasable) {
	for a, since := range x.Addrs {
		AddAddrs(s, id, []netip.Addr{a}, since)
	}
	for _, b := range x.Prefixes {
		AddPrefixes(s, id, []netip.Prefix{b.CIDR}, b.Since)
		for a, since := range x.Within {
			if b.CIDR.Contains(a) && !s.Free.Has(a) && !s.Leases.Has(a) {
				s.Free.Set(a, since)
			}
		}
	}
}

// NoteRelease writes an intent for each chosen address in x. A process calls NoteRelease before it releases x to EC2.
// If this process is killed, a later process finds the intent, and finishes the release.
func NoteRelease(s *registry.State, id string, x Releasable) {
	NoteNamed(s, id, x.Only(func(a netip.Addr) bool { _, owned := s.Owners[a]; return owned },
		func(netip.Prefix) bool { return false }))
}

// NoteNamed writes an intent for each address in x, whether a pod had chosen the address or not. It is for addresses
// that an operator's command names.
func NoteNamed(s *registry.State, id string, x Releasable) {
	for a := range x.Addrs {
		s.Intents[releaseKey(a)] = registry.Intent{
			Action: UnassignActionOf(a), ENI: id, Since: time.Now(), Addr: a, Pod: s.Owners[a],
		}
	}
}

// EndRelease removes the intents that NoteRelease or NoteNamed has written for the addresses in x.
func EndRelease(s *registry.State, x Releasable) {
	for a := range x.Addrs {
		delete(s.Intents, releaseKey(a))
	}
}

// LeftReleases returns the intents of releases whose processes were killed or got no answer. A later process has to
// finish these releases. If the registry has the address of an intent again, no process has to finish the release, so
// LeftReleases deletes the intent. It also deletes an intent if the registry no longer has the ENI.
func LeftReleases(s *registry.State) (left []registry.Intent) {
	for token, i := range s.Intents {
		if !lease.ReleasesChosen(i) {
			continue
		}
		if _, is := LeftRelease(s, i.Addr); is {
			left = append(left, i)
			continue
		}
		if id, _ := s.ENIOf(i.Addr); s.Free.Has(i.Addr) && id == i.ENI && i.Pod.Name != "" {
			s.Owners[i.Addr] = i.Pod
		}
		delete(s.Intents, token)
	}
	return left
}

// LeftRelease returns the intent to release the address, and true if a process still has to finish this release: see
// LeftReleases.
func LeftRelease(s *registry.State, a netip.Addr) (i registry.Intent, left bool) {
	i, begun := s.Intents[releaseKey(a)]
	id, _ := s.ENIOf(a)
	_, known := s.ENIs[i.ENI]
	return i, begun && known && id == "" && !s.Leases.Has(a)
}

// releaseKey returns the key of an intent to release an address. A call that unassigns has no client token, so the key
// contains the address. All other keys are random. If the call of an intent has a client token, the key is also this
// token.
func releaseKey(a netip.Addr) string { return "release " + a.String() }

// GiveChosen goes through the intents of an ENI. If an intent names a free address, the pod of this intent becomes the
// owner of the address. For this pod, the address need not cool.
func GiveChosen(s *registry.State, eni string) {
	for _, i := range s.Intents {
		if i.ENI == eni && i.Pod.Name != "" && s.Free.Has(i.Addr) {
			s.Owners[i.Addr] = i.Pod
		}
	}
}
