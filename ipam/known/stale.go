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

// Metadata shows for a while, seldom for hours, what a collection has unassigned. The registry has what this node has
// unassigned in the last minutes. After a boot the registry is new, and nothing on the node says what was there
// before.
//
// So what is new to the registry is believed only if EC2 shows it, too, or if a pod has it. That costs a call, but
// only when metadata shows something new. What this node gets from EC2 is in the registry before metadata shows it.
//
// If EC2 does not answer, the node goes on with what the registry has, and the next process asks. Until EC2 answers,
// an ENI that is new serves no pods. Neither does the boot ENI if it has more than the node's own addresses.
//
// There are two exceptions. With "provision": "none", no process unassigns anything. If the role may not ask EC2,
// metadata has to do.

// doubts reports whether the node must not trust what only metadata shows. The argument says why EC2 has not returned
// tags: see TagsUnknown of [registry.ENI].
func (p *Node) doubts(tagsUnknown string) bool {
	return p.Policy.Provision != lease.ProvisionNone && tagsUnknown != registry.NotAllowed
}

// news reports whether metadata shows something of an ENI that the registry does not have, and could have.
func news(s *registry.State, e aws.ENI) bool {
	known := s.ENIs[e.ID]
	known.Boot = known.Boot || e.Boot
	isNew := func(a netip.Addr) bool {
		return !known.Has(a) && !book.NodesOwn(e, known, a) && !recentlyGone(s, a, time.Now(), lease.StaleMetadata) &&
			book.Strange(s, e.ID, known, []netip.Addr{a}, nil) == nil
	}
	return e.Index >= 0 && !known.Foreign && (known.IsBoot() && known.TagsUnknown == registry.NotAsked ||
		slices.ContainsFunc(slices.Concat(e.Addrs, e.IPv6Addrs), isNew) ||
		slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes),
			func(c netip.Prefix) bool { return isNew(c.Addr()) }))
}

// confirmed reports whether more than metadata shows that an ENI has an address, or a prefix with that first address.
func (l discovery) confirmed(e aws.ENI, a netip.Addr) bool {
	known := l.ENIs[e.ID]
	d, asked := l.described[e.ID]
	switch {
	case l.used.Of(e.MAC, a) != "":
		return true
	case asked:
		return book.Carries(d, a)
	}
	return !l.doubts || known.Has(a) || book.NodesOwn(e, known, a)
}

// recentlyGone reports whether this node has unassigned an address so recently that who lags so much may
// still list it.
func recentlyGone(s *registry.State, a netip.Addr, now time.Time, lag time.Duration) bool {
	gone, unassigned := s.Gone[a]
	return unassigned && now.Sub(gone) < lag
}

// unknownOf returns the TagsUnknown of an ENI of which EC2 has not returned the tags, for that reason. The boot ENI
// needs no tags. It has such a reason only until EC2 says which addresses it has.
func unknownOf(e registry.ENI, why string) string {
	if e.IsBoot() && why == registry.NotAllowed {
		return ""
	}
	return why
}

// told returns an ENI of the registry, completed from EC2's description. If EC2 could not be asked before, the ENI has
// served no pods, and metadata alone has shown its addresses. Addresses that EC2 does not show leave the registry.
func told(s *registry.State, id string, d aws.ENI) registry.ENI {
	if d.ID == id && s.ENIs[id].TagsUnknown == registry.NotAsked {
		settle(s, []aws.ENI{d}, time.Time{})
	}
	return book.Label(s.ENIs[id], d)
}
