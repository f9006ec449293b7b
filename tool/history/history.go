// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package history reads lease logs. The logs show which pod had which address at a time in the past.
//
// A log has a line for every begin and every end of a lease. But a program that copies logs may cut, damage, repeat or
// reorder lines. So package history ignores repeated lines. It divides the lines of a node into series, and sorts each
// series by the numbers of the lines (see series.go). From the lines about an address, it learns which pod had the
// address at which time (see walk.go). Around a missing number, it does not know which pod had an address.
package history

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Lease is a lease of an address from Begin until End.
type Lease struct {
	registry.Line // a line of the log that is about the lease, and names the pod

	Begin time.Time
	End   time.Time // zero: the log does not have the end

	// If lastShown is not zero, no line shows the end of the lease. lastShown is then the time of the last line that
	// the node wrote in the same boot.
	lastShown time.Time
}

// covers reports whether the lease existed at some time in [from, to).
func (l *Lease) covers(from, to time.Time) bool {
	return l.Begin.Before(to) && (l.End.IsZero() || from.Before(l.End))
}

// A doubt is a period in which a line about an address may be lost. For this period, the logs do not show which pod had
// the address.
type doubt struct{ from, to time.Time } // if the field "to" is zero, the doubt has no end

// A tenancy has all that the logs show about one address.
type tenancy struct {
	leases []*Lease    // sorted by Begin
	ends   []time.Time // ends[i] is the latest end of leases[:i+1]; zero: one of these leases has no end
	doubts []doubt
}

// A History has the content of the lease logs of one or many nodes. All nodes must be in one VPC, or in VPCs whose
// CIDRs do not overlap, so that no two nodes have the same address.
type History struct {
	nodes     []*node
	hasUnread bool // a file is unreadable, and its lines may be about any address
	// the tenancies of the addresses that callers have asked for. All addresses without a line share one tenancy, whose
	// key is the zero address
	known map[netip.Addr]*tenancy
}

// Keep keeps only the lines of this instance, and lines that name no instance. The caller must not have asked for an
// address yet.
func (h *History) Keep(instance string) {
	h.nodes = slices.DeleteFunc(h.nodes, func(n *node) bool { return n.instance != "" && n.instance != instance })
}

// tenancyOf returns the tenancy of an address. It makes the tenancy at the first call.
func (h *History) tenancyOf(a netip.Addr) *tenancy {
	if !slices.ContainsFunc(h.nodes, func(n *node) bool { return n.hasAddr(a) }) {
		a = netip.Addr{}
	}
	t := h.known[a]
	if t == nil {
		t = h.newTenancy(a)
		h.known[a] = t
	}
	return t
}

func (h *History) newTenancy(a netip.Addr) *tenancy {
	t := &tenancy{}
	for _, n := range h.nodes {
		leases, doubts := n.walkAddr(a)
		t.leases, t.doubts = append(t.leases, leases...), append(t.doubts, doubts...)
	}
	slices.SortStableFunc(t.leases, func(a, b *Lease) int {
		return cmp.Or(a.Begin.Compare(b.Begin), cmp.Compare(a.Instance, b.Instance))
	})
	endCrashedLeases(t.leases)
	for i, l := range t.leases {
		end := l.End
		if i > 0 && !end.IsZero() && (t.ends[i-1].IsZero() || t.ends[i-1].After(end)) {
			end = t.ends[i-1]
		}
		t.ends = append(t.ends, end)
	}
	return t
}

// endCrashedLeases ends the leases of nodes that have crashed, and so have written no line about the ends. If a lease
// of another node begins after the crashed node's last line, the crashed node's lease ends when that lease begins.
func endCrashedLeases(ls []*Lease) {
	for i, l := range ls {
		for _, next := range ls[i+1:] {
			if next.Instance != l.Instance && !l.lastShown.IsZero() && next.Begin.After(l.lastShown) &&
				l.covers(next.Begin, next.Begin.Add(1)) {
				l.End = next.Begin
			}
		}
	}
}

// LeasesOf returns the leases of an address, the earliest first.
func (h *History) LeasesOf(a netip.Addr) []*Lease { return h.tenancyOf(a).leases }

// LeasesBetween returns the leases that an address had in [from, to). There may be several: one after the other, or at
// the same time if the clocks of two nodes differ.
func (h *History) LeasesBetween(a netip.Addr, from, to time.Time) (found []*Lease) {
	t := h.tenancyOf(a)
	i, _ := slices.BinarySearchFunc(t.leases, to, func(l *Lease, to time.Time) int { return l.Begin.Compare(to) })
	for i--; i >= 0 && (t.ends[i].IsZero() || from.Before(t.ends[i])); i-- {
		if t.leases[i].covers(from, to) {
			found = append(found, t.leases[i])
		}
	}
	slices.Reverse(found)
	return found
}

// At returns the leases that an address had at one moment: none, or one, or more if the clocks of two nodes differ.
func (h *History) At(a netip.Addr, at time.Time) []*Lease { return h.LeasesBetween(a, at, at.Add(1)) }

// Sure reports whether the logs show all leases of an address in [from, to). It returns false if a lost line may be
// about another pod with the address. A lost line does not matter if one lease covers the whole time in which the line
// may have been lost.
func (h *History) Sure(a netip.Addr, from, to time.Time) bool {
	doubts := h.tenancyOf(a).doubts
	if h.hasUnread {
		doubts = append(slices.Clone(doubts), doubt{})
	}
	for _, d := range doubts {
		if !d.from.Before(to) || !d.to.IsZero() && !from.Before(d.to) {
			continue
		}
		from, to := later(from, d.from), to
		if !d.to.IsZero() && d.to.Before(to) {
			to = d.to
		}
		had := func(l *Lease) bool { return !l.Begin.After(from) && (l.End.IsZero() || !l.End.Before(to)) }
		if !slices.ContainsFunc(h.LeasesBetween(a, from, to), had) {
			return false
		}
	}
	return true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
