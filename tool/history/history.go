// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package history reads lease logs: who had which address at a time in the past.
//
// A log has every begin and end of a lease, but not always once. After a kill or a full disk a
// node repeats lines, and a snapshot says which leases there are. Whoever ships logs sends lines again, in another
// order, and sometimes only a part of one. So the lines of a node are first put in order, each once (see order.go), and then
// compared with what has been read of the node (see node.go). What a lost line may have said is unknown, and nothing is
// concluded from it (see gap.go).
package history

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Lease was that of an address, from Begin until End.
type Lease struct {
	registry.Line // with what the log says of the pod

	Begin time.Time
	End   time.Time // zero: the log has no end of it

	exact  bool      // the log has the end itself, and not only that it was over
	proven time.Time // a line says that the lease was there until then
}

// covers reports whether the lease was there at some time from the first time to before the second.
func (l *Lease) covers(from, to time.Time) bool {
	return l.Begin.Before(to) && (l.End.IsZero() || from.Before(l.End))
}

// has reports whether the line is about the attachment's interface that has the lease. A line that
// does not know the attachment may be about any.
func (l *Lease) has(line registry.Line) bool {
	return line.Container == "" || l.Network == line.Network && l.Container == line.Container && l.Interface == line.Interface && l.NIC == line.NIC
}

// A History is what lease logs say, of one or many nodes. The addresses of the nodes differ: they
// are of one VPC, or of VPCs whose CIDRs do not overlap.
type History struct {
	leases map[netip.Addr][]*Lease // in the order of Begin
	ends   map[netip.Addr][]time.Time
	gaps   map[netip.Addr][]gap // of the zero address: those that may be about any
}

// newHistory brings the leases of all nodes together. An address that has moved to another node
// without an end on the first one, which has crashed, was there until then.
func newHistory(nodes map[string]*node) *History {
	h := &History{leases: map[netip.Addr][]*Lease{}, ends: map[netip.Addr][]time.Time{}, gaps: map[netip.Addr][]gap{}}
	for _, n := range nodes {
		for _, g := range n.gaps {
			h.gaps[g.addr] = append(h.gaps[g.addr], g)
		}
		for a, ls := range n.leases {
			h.leases[a] = append(h.leases[a], ls...)
		}
	}
	for a, ls := range h.leases {
		slices.SortStableFunc(ls, func(a, b *Lease) int {
			return cmp.Or(a.Begin.Compare(b.Begin), cmp.Compare(a.Instance, b.Instance))
		})
		for i, l := range ls {
			if l.End.IsZero() && i+1 < len(ls) {
				l.End = ls[i+1].Begin
			}
		}
		h.ends[a] = latestEnds(ls)
	}
	return h
}

// latestEnds are, for each lease, the latest end of this lease and of those before it. Clocks of nodes differ, so an earlier lease
// may end later. The zero time is no end.
func latestEnds(ls []*Lease) (ends []time.Time) {
	for i, l := range ls {
		end := l.End
		if i > 0 && !end.IsZero() && (ends[i-1].IsZero() || ends[i-1].After(end)) {
			end = ends[i-1]
		}
		ends = append(ends, end)
	}
	return ends
}

// Of lists the leases of an address, the earliest first.
func (h *History) Of(a netip.Addr) []*Lease { return h.leases[a] }

// Between lists the leases that an address had from the first time to before the second. There is
// more than one if the address has changed its pod meanwhile, or if the clocks of two nodes differ.
func (h *History) Between(a netip.Addr, from, to time.Time) (found []*Lease) {
	ls, ends := h.leases[a], h.ends[a]
	i, _ := slices.BinarySearchFunc(ls, to, func(l *Lease, to time.Time) int { return l.Begin.Compare(to) })
	for i--; i >= 0 && (ends[i].IsZero() || from.Before(ends[i])); i-- {
		if ls[i].covers(from, to) {
			found = append(found, ls[i])
		}
	}
	slices.Reverse(found)
	return found
}

// At lists the leases that an address had at a time: none, or one, or more if the clocks of two nodes differ.
func (h *History) At(a netip.Addr, at time.Time) []*Lease { return h.Between(a, at, at.Add(1)) }

// Sure reports whether the log has all that there was to know of an address from the first time to before the second. Otherwise a
// line is damaged or lost that may have named another pod, or the end of a lease.
func (h *History) Sure(a netip.Addr, from, to time.Time) bool {
	concerns := func(g gap) bool { return g.concerns(from, to) }
	if !slices.ContainsFunc(h.gaps[a], concerns) && !slices.ContainsFunc(h.gaps[netip.Addr{}], concerns) {
		return true
	}
	found := h.Between(a, from, to)
	return len(found) == 1 && !found[0].Begin.After(from) && !found[0].proven.Before(to.Add(-1))
}
