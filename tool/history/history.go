// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package history reads lease logs: who had which address at a time in the past.
//
// A log has every begin and end of a lease, but it may reach the reader in pieces, twice, in another order, or damaged.
// So the reader puts the lines of a node into series by their numbers, each line once (see series.go). Each line shows
// who had an address before it and after it (see walk.go). If a number is missing, no process knows what the lost line
// said. So the time around it is unknown.
package history

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Lease is a past lease of an address, from Begin until End.
type Lease struct {
	registry.Line // with what the log says of the pod

	Begin time.Time
	End   time.Time // zero: the log has no end of it

	shown time.Time // the last line of the node that the lease has outlived, if the log does not have the end itself
}

// covers reports whether the lease was there at some time from the first time to before the second.
func (l *Lease) covers(from, to time.Time) bool {
	return l.Begin.Before(to) && (l.End.IsZero() || from.Before(l.End))
}

// A doubt is a time in which a lost line may have given the address to a pod, or have ended a lease.
type doubt struct{ from, to time.Time } // to is zero: without an end

// A tenancy is what is known of an address.
type tenancy struct {
	leases []*Lease    // in the order of Begin
	ends   []time.Time // for each lease, the latest end of it and of those before it; zero: none
	doubts []doubt
}

// A History is what lease logs say, of one or many nodes. The addresses of the nodes differ: they
// are of one VPC, or of VPCs whose CIDRs do not overlap.
type History struct {
	nodes []*node
	// of the addresses that have been asked for; of the zero address: of all that no line has
	known map[netip.Addr]*tenancy
}

// of returns what is known of an address.
func (h *History) of(a netip.Addr) *tenancy {
	if !slices.ContainsFunc(h.nodes, func(n *node) bool { return n.has(a) }) {
		a = netip.Addr{}
	}
	t := h.known[a]
	if t == nil {
		t = h.tenancy(a)
		h.known[a] = t
	}
	return t
}

func (h *History) tenancy(a netip.Addr) *tenancy {
	t := &tenancy{}
	for _, n := range h.nodes {
		leases, doubts := n.walk(a)
		t.leases, t.doubts = append(t.leases, leases...), append(t.doubts, doubts...)
	}
	slices.SortStableFunc(t.leases, func(a, b *Lease) int {
		return cmp.Or(a.Begin.Compare(b.Begin), cmp.Compare(a.Instance, b.Instance))
	})
	endSilent(t.leases)
	for i, l := range t.leases {
		end := l.End
		if i > 0 && !end.IsZero() && (t.ends[i-1].IsZero() || t.ends[i-1].After(end)) {
			end = t.ends[i-1]
		}
		t.ends = append(t.ends, end)
	}
	return t
}

// endSilent ends the leases of a node that has crashed: another node has got the address since its last line.
func endSilent(ls []*Lease) {
	for i, l := range ls {
		for _, next := range ls[i+1:] {
			if next.Instance != l.Instance && !l.shown.IsZero() && next.Begin.After(l.shown) &&
				l.covers(next.Begin, next.Begin.Add(1)) {
				l.End = next.Begin
			}
		}
	}
}

// Of lists the leases of an address, the earliest first.
func (h *History) Of(a netip.Addr) []*Lease { return h.of(a).leases }

// Between lists the leases that an address had from the first time to before the second. There is
// more than one if the address has changed its pod meanwhile, or if the clocks of two nodes differ.
func (h *History) Between(a netip.Addr, from, to time.Time) (found []*Lease) {
	t := h.of(a)
	i, _ := slices.BinarySearchFunc(t.leases, to, func(l *Lease, to time.Time) int { return l.Begin.Compare(to) })
	for i--; i >= 0 && (t.ends[i].IsZero() || from.Before(t.ends[i])); i-- {
		if t.leases[i].covers(from, to) {
			found = append(found, t.leases[i])
		}
	}
	slices.Reverse(found)
	return found
}

// At lists the leases that an address had at a time: none, or one, or more if the clocks of two nodes differ.
func (h *History) At(a netip.Addr, at time.Time) []*Lease { return h.Between(a, at, at.Add(1)) }

// Sure reports whether the log has all that there was to know of an address from the first time to before the second.
// Otherwise a line is lost that may have named another pod. An address that a pod has is not another's.
func (h *History) Sure(a netip.Addr, from, to time.Time) bool {
	for _, d := range h.of(a).doubts {
		if !d.from.Before(to) || !d.to.IsZero() && !from.Before(d.to) {
			continue
		}
		from, to := later(from, d.from), to
		if !d.to.IsZero() && d.to.Before(to) {
			to = d.to
		}
		had := func(l *Lease) bool { return !l.Begin.After(from) && (l.End.IsZero() || !l.End.Before(to)) }
		if !slices.ContainsFunc(h.Between(a, from, to), had) {
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
