// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// After a collection has unassigned an address, metadata still shows it for a while, in rare cases for hours. The
// registry records what this node has unassigned in the last minutes, but after a boot, the registry is new.
//
// So the node accepts an address that is new to the registry only if EC2 also shows the address, or if a pod has it.
// The node need not ask EC2 about the addresses that EC2 has assigned at this node's request.
//
// If EC2 does not answer, the node continues with what the registry has, and the next process asks EC2. Until EC2
// answers, a new ENI serves no pods. The boot ENI also serves no pods until then, if metadata shows more on it than the
// node's own addresses.
//
// The node trusts metadata alone if no process of the node unassigns anything (see TrustsMetadata), or if the role has
// no permission to ask EC2.

// TrustsMetadata reports whether this node changes nothing in EC2. "provision": "none" does not prove this, because
// another network of the node may allow changes. A collection knows all networks of the conflists. The field Changes of
// its policy is true if one of these networks allows changes. An ADD knows only its own network. But an ADD sees by
// ReleasedMark whether the node has released something since the boot.
func (p *Node) TrustsMetadata() bool {
	return p.Policy.Provision == lease.ProvisionNone && !p.Policy.Changes && !p.Registry.Marked(ReleasedMark)
}

// doubtsMetadata reports whether another source must confirm what metadata shows. The argument tagsUnknown says why EC2
// has not returned tags: see TagsUnknown of [registry.ENI].
func (p *Node) doubtsMetadata(tagsUnknown string) bool {
	return tagsUnknown != registry.NotAllowed && !p.TrustsMetadata()
}

// hasNews reports whether metadata shows an address or a prefix that is new to the registry, and that the ENI can have.
// It also returns true for a boot ENI that EC2 has not confirmed.
func hasNews(s *registry.State, e aws.ENI) bool {
	known := s.ENIs[e.ID]
	known.Boot = known.Boot || e.Boot
	isNew := func(a netip.Addr) bool {
		return !known.Has(a) && !book.NodesOwn(e, known, a) && !recentlyGone(s, a, time.Now(), lease.StaleMetadata) &&
			book.Strange(s, e.ID, known, []netip.Addr{a}, nil) == nil
	}
	isNewPrefix := func(c netip.Prefix) bool {
		return !known.HasPrefix(c) && !recentlyGone(s, c.Addr(), time.Now(), lease.StaleMetadata) &&
			book.Strange(s, e.ID, known, nil, []netip.Prefix{c}) == nil
	}
	return e.Index >= 0 && !known.Foreign && (known.IsBoot() && known.TagsUnknown == registry.NotAsked ||
		slices.ContainsFunc(slices.Concat(e.Addrs, e.IPv6Addrs), isNew) ||
		slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes), isNewPrefix))
}

// confirmed reports whether the node can trust that an ENI has an address. If the kernel shows the address on the ENI,
// confirmed returns true. Otherwise, EC2's description of the ENI decides. Without a description, confirmed trusts
// metadata if the registry has the address, or if doubtsMetadata is false.
func (l discovery) confirmed(e aws.ENI, a netip.Addr) bool {
	known := l.ENIs[e.ID]
	d, asked := l.described[e.ID]
	switch {
	case l.used.Of(e.MAC, a) != "":
		return true
	case asked:
		return book.Carries(d, a)
	}
	return !l.doubtsMetadata || known.Has(a) || book.NodesOwn(e, known, a)
}

// confirmedPrefix does what confirmed does, for a prefix. The kernel proves nothing here, because the ENI may have a
// pod's address as a single address, and not in the prefix.
func (l discovery) confirmedPrefix(e aws.ENI, c netip.Prefix) bool {
	if d, asked := l.described[e.ID]; asked {
		return book.Delegates(d, c)
	}
	return !l.doubtsMetadata || l.ENIs[e.ID].HasPrefix(c)
}

// recentlyGone reports whether this node unassigned the address less than lag ago. During this time, metadata or EC2
// may still list the address.
func recentlyGone(s *registry.State, a netip.Addr, now time.Time, lag time.Duration) bool {
	gone, unassigned := s.Gone[a]
	return unassigned && now.Sub(gone) < lag
}

// tagsUnknownOf returns the value of TagsUnknown for an ENI. The argument reason says why EC2 has not returned the tags
// of the ENI. The boot ENI needs no tags, but serves pods only after EC2 has confirmed the addresses of the boot ENI.
// If the role has no permission to ask EC2, tagsUnknownOf returns "" for the boot ENI. Without this exception, the boot
// ENI would wait for ever.
func tagsUnknownOf(e registry.ENI, reason string) string {
	if e.IsBoot() && reason == registry.NotAllowed {
		return ""
	}
	return reason
}

// withDescription completes the registry's entry of an ENI from EC2's description d, and returns the entry. If EC2 has
// not described the ENI before, only metadata has shown its addresses, and no pod has got such an address. So
// withDescription removes the addresses that d does not have.
func withDescription(s *registry.State, id string, d aws.ENI) registry.ENI {
	if d.ID == id && s.ENIs[id].TagsUnknown == registry.NotAsked {
		dropUnconfirmed(s, []aws.ENI{d}, time.Time{})
	}
	return book.Label(s.ENIs[id], d)
}
