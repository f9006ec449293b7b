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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A discovery has the data with which Learn decides what to record of each ENI.
type discovery struct {
	*registry.State
	described      map[string]aws.ENI // EC2's descriptions of the ENIs, by ID; nil: not asked, or no answer
	tagsUnknown    string             // why EC2 has not returned the tags of new ENIs
	doubtsMetadata bool               // the node must not trust what only metadata shows
	used           lease.Used
	links          map[string]nl.Link // the node's links by MAC address; nil if they were not read
	now            time.Time
	noPodYet       bool          // no pod has had an address, so new addresses need not cool
	lag            time.Duration // how long the answer of metadata or EC2 may show an unassigned address
}

// LagOfEC2 is how long EC2 may still list an address after this node has begun to unassign it. The unassign call takes
// seconds, and EC2's descriptions lag behind the call.
const LagOfEC2 = 2 * Settled

// learnENI records an ENI in the state. The argument e is what metadata or EC2 shows of the ENI.
func (l discovery) learnENI(e aws.ENI) {
	if e.Index < 0 || !e.CIDR.IsValid() && !e.IPv6CIDR.IsValid() {
		return // the ENI is not complete in metadata yet
	}
	known, again := l.ENIs[e.ID]
	waits := !again && l.doubtsMetadata && l.tagsUnknown == registry.NotAsked && hasNews(l.State, e)
	if waits {
		// The ENI is recorded, although only metadata shows it. It serves no pods until EC2 answers: see
		// withDescription.
		l.doubtsMetadata = false
	}
	if isPartial(e, known, l.described[e.ID]) {
		return
	}
	if known.Boot = e.Boot; known.Boot {
		// An earlier version of this suite recorded the groups and tags of the boot ENI.
		known.Groups, known.Tags = nil, nil
	}
	later := e.Index > 0 && !e.Boot // the ENI may have been attached after the boot
	d, asked := l.described[e.ID]
	if again && known.TagsUnknown != "" {
		l.ENIs[e.ID] = known
		known = withDescription(l.State, e.ID, d)
		if !asked && l.tagsUnknown != "" {
			known.Doubt(tagsUnknownOf(known, l.tagsUnknown))
		}
	}
	if !again {
		if l.described != nil && !asked && later {
			return // metadata may still show an ENI long after the ENI was detached
		}
		if l.described == nil && l.tagsUnknown == "" && later {
			// After describeNew read the registry, another process has removed the ENI from it. The next Learn asks EC2
			// about the ENI.
			return
		}
		if hasNoAddrs(e) && !(asked && hasNoAddrs(d)) {
			return // metadata does not show the ENI's addresses yet
		}
		out := book.Leaving(again, d)
		if out && d.Tags[book.TagManaged] != "true" {
			return // a process or an operator detaches the ENI
		}
		known = registry.ENI{Boot: known.Boot, Grown: l.now}
		known.Doubt(l.tagsUnknown)
		if hasNoAddrs(e) {
			known.Disown()
		}
		if out { // a collection will delete the ENI
			known.Drain()
			known.Detaching = l.now
		}
		known = book.Label(known, d)
		if !later && !(waits && book.IsBoot(known, e)) {
			known.Confirm() // the boot ENI needs no tags
		}
		if known.Link = l.links[e.MAC].Name; known.Link == "" && l.links != nil && !l.noPodYet && later {
			// A collection may have detached the ENI, so it serves no pods before its link is on the node.
			if _, ok := l.Unconfirmed(); ok {
				known.Miss(l.now.Add(-registry.LinkPatience))
			}
			known.Miss(l.now)
		}
	}
	if !again && book.BegunUnused(l.State, e.ID) {
		l.noPodYet = true // this node has just attached the ENI: no pod has had its addresses
	}
	if len(known.Groups) > 0 && len(e.SecurityGroups) > 0 {
		known.Groups = slices.Sorted(slices.Values(e.SecurityGroups)) // an operator may have changed the groups
	}
	known.MAC, known.Index, known.Card = e.MAC, e.Index, e.Card
	known.Subnet, known.CIDR, known.CIDR6, known.VPC, known.Read = e.Subnet, e.CIDR, e.IPv6CIDR, e.VPC, l.now
	l.ENIs[e.ID] = known
	if !known.Foreign {
		l.learnAddrs(e)
	}
	vpc := l.VPCs[e.VPC]
	if len(e.VPCCIDRs) > 0 {
		vpc.CIDRs = e.VPCCIDRs
	}
	if len(e.VPCIPv6CIDRs) > 0 {
		vpc.CIDRs6 = e.VPCIPv6CIDRs
	}
	l.VPCs[e.VPC] = vpc
}

func (l discovery) learnAddrs(e aws.ENI) {
	for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
		if !l.plausible(e, a) {
			continue
		}
		if known := l.ENIs[e.ID]; !slices.Contains(known.Addrs, a) {
			known.Addrs = append(known.Addrs, a)
			l.ENIs[e.ID] = known
		}
		// The node itself gets an IPv6 address of the boot ENI by DHCPv6. Only the kernel shows which address this is.
		boot, first := l.ENIs[e.ID].IsBoot(), book.NodesOwn(e, l.ENIs[e.ID], a)
		switch {
		case boot && l.used.Node[a] || first && a.Is4():
			l.Free.Delete(a) // an earlier version of this suite recorded it as free
		// The first IPv6 address of the boot ENI is usually the node's own, since the boot. But EC2 may have assigned
		// the address for pods after the boot. In this case, the address is free in the registry, or a pod has the
		// address.
		case first && !l.Free.Has(a) && l.used.Of(e.MAC, a) == "":
		default:
			l.learnAddr(e.ID, a)
		}
	}
	for _, c := range slices.Concat(e.Prefixes, e.IPv6Prefixes) {
		if l.plausiblePrefix(e, c) && !l.used.Partial {
			l.learnPrefix(e.ID, c)
		}
	}
}

// plausible reports whether the ENI e can have the address that metadata or EC2 shows on e.
func (l discovery) plausible(e aws.ENI, a netip.Addr) bool {
	return l.confirmed(e, a) && !recentlyGone(l.State, a, l.now, l.lag) &&
		book.Strange(l.State, e.ID, l.ENIs[e.ID], []netip.Addr{a}, nil) == nil
}

// plausiblePrefix does what plausible does, for a prefix.
func (l discovery) plausiblePrefix(e aws.ENI, c netip.Prefix) bool {
	return l.confirmedPrefix(e, c) && !recentlyGone(l.State, c.Addr(), l.now, l.lag) &&
		book.Strange(l.State, e.ID, l.ENIs[e.ID], nil, []netip.Prefix{c}) == nil
}

// learnAddr records an address of an ENI as leased, free, or cooling.
func (l discovery) learnAddr(eni string, a netip.Addr) {
	netns := l.used.Of(l.ENIs[eni].MAC, a)
	switch {
	case l.Leases.Has(a):
	case l.FreedAfter(a, l.used.Looked):
		// The lease ended after this process had looked at the kernel. So l.used may still show the address in the pod.
	case netns != "":
		found := l.used.FoundLease(netns, a)
		found.ENI, found.Exclusive, found.Since = eni, l.used.InPod(l.ENIs[eni].MAC), l.now
		l.Found(a, found)
	case l.Free.Has(a) || l.used.Partial:
	case l.noPodYet:
		l.Free.Set(a, time.Time{})
	default:
		l.Free.Set(a, l.now)
	}
}

// LearnUsed records an address of an ENI in the same way as Learn.
func LearnUsed(s *registry.State, used lease.Used, eni string, a netip.Addr, now time.Time) {
	discovery{State: s, used: used, now: now}.learnAddr(eni, a)
}

// learnPrefix records a prefix of an ENI, and the prefix's addresses that pods use. In a /28 that is new to the
// registry, all other addresses cool, because earlier pods may have had them. A /80 has too many addresses to list.
func (l discovery) learnPrefix(eni string, c netip.Prefix) {
	e := l.ENIs[eni]
	isNew := !e.HasPrefix(c)
	book.AddPrefixes(l.State, eni, []netip.Prefix{c}, l.now)
	for at := range l.used.By {
		if c.Contains(at.Addr) && l.used.Of(e.MAC, at.Addr) != "" {
			l.learnAddr(eni, at.Addr)
		}
	}
	if !isNew || l.noPodYet || c.Addr().Is6() {
		return
	}
	for a := c.Masked().Addr(); c.Contains(a); a = a.Next() {
		l.learnAddr(eni, a)
	}
}
