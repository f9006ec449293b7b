// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package history

import (
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A walker goes through the lines of a node that are about one address, and through the node's snapshots.
type walker struct {
	addr   netip.Addr
	leases []*Lease
	doubts []doubt

	cur   *Lease        // the lease of the address; nil: none
	line  registry.Line // the line that has last shown the lease
	seen  time.Time     // when a line has last shown who has the address
	lost  *doubt        // the holes after seen; nil: none
	fresh bool          // no line of this series has shown the lease yet
	ended *Lease        // a lease that a rebuilt registry does not have yet: its pod may still run
}

// has reports whether a line of the node is about the address.
func (n *node) has(a netip.Addr) bool {
	for _, s := range n.series {
		if _, ok := s.about[a]; ok {
			return true
		}
	}
	return false
}

// walk returns the leases of an address, and the times in which no reader knows who had it.
func (n *node) walk(a netip.Addr) ([]*Lease, []doubt) {
	if len(n.series) == 0 && n.cut {
		return nil, []doubt{{}}
	}
	w := &walker{addr: a}
	for i, s := range n.series {
		if i > 0 {
			w.enter(n.series[i-1], s)
		}
		w.fresh = true
		w.through(s)
	}
	if w.lost != nil {
		w.forget(time.Time{})
	}
	if w.cur != nil {
		w.cur.shown = n.series[len(n.series)-1].last()
	}
	return w.leases, w.doubts
}

// enter begins the series s, after the series before. If the two series are of different boots, the later boot has
// ended all leases.
func (w *walker) enter(before, s *series) {
	w.ended = nil
	if s.boot == before.boot || s.booted.Sub(before.booted).Abs() <= sameBoot {
		return
	}
	if len(s.holes) > 0 && s.holes[0].at == 0 {
		w.miss(hole{from: s.holes[0].from, to: s.booted})
	}
	if w.lost != nil {
		w.forget(s.booted)
	}
	if w.cur != nil {
		w.cur.shown = before.last()
		w.close(s.booted)
	}
}

// through goes through the holes and the snapshots of a series, and through its lines about the address, in their
// order.
func (w *walker) through(s *series) {
	holes, whole := s.holes, s.whole
	pass := func(at int) { // walks through the holes and the snapshots up to a line
		for {
			switch {
			case len(holes) > 0 && holes[0].at <= at && (len(whole) == 0 || holes[0].at <= whole[0].from):
				w.miss(holes[0])
				holes = holes[1:]
			case len(whole) > 0 && whole[0].from <= at:
				if at >= whole[0].to || at == len(s.lines) {
					w.see(nil, s.lines[whole[0].from].Time)
				}
				whole = whole[1:]
			default:
				return
			}
		}
	}
	for _, at := range s.about[w.addr] {
		pass(at)
		w.read(s.lines[at])
	}
	pass(len(s.lines))
}

// miss records a hole. It ignores a hole whose lost lines are about another address.
func (w *walker) miss(h hole) {
	switch {
	case h.addr.IsValid() && h.addr != w.addr:
	case w.lost == nil:
		w.lost = &doubt{h.from, h.to}
	case h.to.IsZero() || h.to.After(w.lost.to):
		w.lost.to = h.to
	}
}

// read reads a line about the address.
func (w *walker) read(l registry.Line) {
	held := l
	if held.Time = l.Since; l.Since.IsZero() {
		held.Time = l.Time
	}
	switch l.Event {
	case registry.Begin:
		w.begin(l)
	case registry.Held:
		w.see(&held, l.Time)
	case registry.End:
		if n := len(w.leases); w.cur == nil && n > 0 && !w.fresh && w.lost == nil && like(w.line, held) {
			w.cur = w.leases[n-1] // a snapshot has shown already that the lease has ended
		} else {
			w.see(&held, l.Time)
		}
		w.cur.Missing = l.Missing
		w.close(l.Time)
	}
}

func (w *walker) begin(l registry.Line) {
	whole := w.lost == nil
	switch {
	case whole && w.fresh && w.cur != nil && w.cur.has(l): // the registry was lost: the lease goes on
	case whole && w.cur == nil && w.ended != nil && l.Container == "":
		w.cur = w.ended
		w.cur.End = time.Time{}
	case whole && w.cur != nil && like(w.line, l): // a snapshot has shown the lease already
	default:
		w.see(nil, l.Time)
		w.open(l)
	}
	w.line, w.seen, w.fresh, w.ended = l, l.Time, false, nil
}

// see records which lease has the address at a time. l is a line about this lease, and the time of l is the begin of
// the lease. If l is nil, no lease has the address.
func (w *walker) see(l *registry.Line, at time.Time) {
	if same := l != nil && w.cur != nil && w.same(*l); !same {
		since := at
		if l != nil {
			since = l.Time
		}
		switch {
		// a rebuilt registry does not know the begin of the lease
		case w.lost != nil && l != nil && (since.Before(w.lost.to) || w.fresh && l.Container == ""):
			w.forget(since)
		case w.lost != nil:
			w.forget(w.lost.to)
		case w.cur != nil:
			if w.ended = nil; w.fresh && l == nil {
				w.ended = w.cur
			}
			w.close(since)
		}
		if l != nil {
			w.open(*l)
		}
	}
	if l != nil {
		w.line = *l
	}
	w.lost, w.seen, w.fresh = nil, at, false
}

// same reports whether a line is about the current lease. Another registry or another clock gave the times in the first
// lines of a series. So the begin of the lease in these lines does not count.
func (w *walker) same(l registry.Line) bool {
	if w.fresh {
		return w.cur.has(l) && (w.lost == nil || l.Container != "")
	}
	return keyed(w.line) == keyed(l) && (w.lost == nil || near(w.line.Time, l.Time))
}

// forget ends the current lease where the holes begin. From there to until, no reader knows who had the address.
func (w *walker) forget(until time.Time) {
	from := later(w.lost.from, w.seen)
	if !until.IsZero() && until.Before(from) {
		from = until
	}
	w.close(from)
	if until.IsZero() || from.Before(until) {
		w.doubts = append(w.doubts, doubt{from, until})
	}
	w.lost, w.ended = nil, nil
}

func (w *walker) close(at time.Time) {
	if w.cur != nil {
		w.cur.End, w.cur = later(at, w.cur.Begin), nil
	}
}

func (w *walker) open(l registry.Line) {
	w.cur = &Lease{Line: l, Begin: l.Time}
	if n := len(w.leases); n > 0 {
		w.cur.Begin = later(l.Time, w.leases[n-1].End)
	}
	w.leases, w.ended = append(w.leases, w.cur), nil
}

// like reports whether two lines, whose times are the begins of their leases, are about one lease.
func like(a, b registry.Line) bool { return keyed(a) == keyed(b) && near(a.Time, b.Time) }

// keyed returns a line that has only the key of its lease.
func keyed(l registry.Line) registry.Line {
	return registry.Line{Network: l.Network, Container: l.Container, Interface: l.Interface, NIC: l.NIC}
}

// near reports whether two times can be the begin of one lease.
func near(a, b time.Time) bool { return a.Sub(b).Abs() <= sameBoot }

// has reports whether the line is about the attachment's interface that has the lease. A line without an attachment may
// be about any attachment.
func (l *Lease) has(line registry.Line) bool {
	return line.Container == "" || keyed(l.Line) == keyed(line)
}
