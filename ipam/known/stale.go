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

// After a collection has unassigned an address, metadata still shows the address for a while, in rare cases for hours.
// The registry records which addresses this node has unassigned in the last minutes. But after a boot, the registry is
// new, and nothing on the node shows which addresses the node has unassigned.
//
// So if metadata shows an address that is new to the registry, the node does not trust metadata alone. EC2 must also
// show the address, or a pod must have it. This check costs a call to EC2, but only when metadata shows something new.
// Addresses that this node gets from EC2 are in the registry before metadata shows them.
//
// If EC2 does not answer, the node continues with what the registry has, and the next process asks EC2. Until EC2
// answers, a new ENI serves no pods. Until then, the boot ENI serves no pods either, if metadata shows further
// addresses on it besides the node's own.
//
// In two cases, the node trusts metadata alone. The first case: no process of the node unassigns anything (see
// TrustsMetadata). The second case: the role has no permission to ask EC2, so the node has no other source.

// TrustsMetadata reports whether no process of this node changes anything in EC2. If TrustsMetadata returns true, the
// node has made no change behind which metadata could lag. A network with "provision": "none" does not prove that the
// node changes nothing, because another network of the node may allow changes. A collection knows all networks of the
// conflists, and sets the field Changes of its policy if one of these networks allows changes. An ADD knows only its
// own network. But the mark ReleasedMark shows the ADD whether the node has released something since the boot.
func (p *Node) TrustsMetadata() bool {
	return p.Policy.Provision == lease.ProvisionNone && !p.Policy.Changes && !p.Registry.Marked(ReleasedMark)
}

// doubtsMetadata reports whether the node must not trust what only metadata shows. tagsUnknown says why EC2 has not
// returned tags: see TagsUnknown of [registry.ENI].
func (p *Node) doubtsMetadata(tagsUnknown string) bool {
	return tagsUnknown != registry.NotAllowed && !p.TrustsMetadata()
}

// hasNews reports whether metadata shows an address or a prefix of the ENI that is new to the registry. It ignores an
// address that the ENI cannot have. hasNews also returns true for a boot ENI that EC2 has not confirmed.
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

// confirmed reports whether the node can trust that an ENI has an address. The node trusts an address that the kernel
// shows in use on the ENI. For any other address, EC2's description of the ENI decides. If EC2 has not described the
// ENI, the node trusts metadata about addresses in the registry. About other addresses, the node trusts metadata only
// if doubtsMetadata is false.
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

// confirmedPrefix reports whether the node can trust that an ENI has a prefix. EC2's description of the ENI decides. If
// EC2 has not described the ENI, the node trusts metadata about prefixes in the registry. About other prefixes, the
// node trusts metadata only if doubtsMetadata is false. A pod with an address within the prefix proves nothing, because
// the ENI may have that address as a single address.
func (l discovery) confirmedPrefix(e aws.ENI, c netip.Prefix) bool {
	if d, asked := l.described[e.ID]; asked {
		return book.Delegates(d, c)
	}
	return !l.doubtsMetadata || l.ENIs[e.ID].HasPrefix(c)
}

// recentlyGone reports whether this node unassigned the address less than the duration lag ago. For so long, metadata
// or EC2 may still list the address.
func recentlyGone(s *registry.State, a netip.Addr, now time.Time, lag time.Duration) bool {
	gone, unassigned := s.Gone[a]
	return unassigned && now.Sub(gone) < lag
}

// tagsUnknownOf returns the TagsUnknown of an ENI whose tags EC2 has not returned. The argument reason says why EC2 has
// not returned them. The boot ENI needs no tags. So for the boot ENI, TagsUnknown has another meaning: the ENI serves
// no pods until EC2 has confirmed its addresses. If the role has no permission to ask EC2, the boot ENI would wait for
// ever, so tagsUnknownOf returns "".
func tagsUnknownOf(e registry.ENI, reason string) string {
	if e.IsBoot() && reason == registry.NotAllowed {
		return ""
	}
	return reason
}

// withDescription completes the registry's entry of an ENI from EC2's description d, and returns the entry. If EC2 was
// not asked before, or did not answer, the ENI has served no pods yet, and only metadata has shown its addresses. In
// this case, withDescription removes from the registry the addresses that d does not have.
func withDescription(s *registry.State, id string, d aws.ENI) registry.ENI {
	if d.ID == id && s.ENIs[id].TagsUnknown == registry.NotAsked {
		dropUnconfirmed(s, []aws.ENI{d}, time.Time{})
	}
	return book.Label(s.ENIs[id], d)
}
