// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package history

import (
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A walker finds the leases of one address, and the doubts about this address. It reads the node's snapshots, and the
// lines about the address.
type walker struct {
	addr   netip.Addr
	leases []*Lease
	doubts []doubt

	cur        *Lease        // the current lease of the address; nil: none
	lastLine   registry.Line // the last line that has shown this lease
	lastSeen   time.Time     // the time of the last line or snapshot that shows who has the address
	curHole    *doubt        // the time after lastSeen in which lines are lost; nil: no lines are lost
	isFresh    bool          // no line of this series has shown yet who has the address
	endedLease *Lease        // a lease that a rebuilt registry lacks, but whose pod may still run
}

func (n *node) hasAddr(a netip.Addr) bool {
	for _, s := range n.series {
		if _, ok := s.linesOf[a]; ok {
			return true
		}
	}
	return false
}

func (n *node) walkAddr(a netip.Addr) ([]*Lease, []doubt) {
	if len(n.series) == 0 && n.endLost {
		return nil, []doubt{{}}
	}
	w := &walker{addr: a}
	for i, s := range n.series {
		if i > 0 {
			w.enterSeries(n.series[i-1], s)
		}
		w.isFresh = true
		w.walkSeries(s)
	}
	if w.curHole != nil {
		w.endInHole(time.Time{})
	}
	if w.cur != nil {
		w.cur.lastShown = n.series[len(n.series)-1].lastTime()
	}
	return w.leases, w.doubts
}

// enterSeries goes from one series to the next, s. If the machine has booted between the two series, all leases have
// ended, and enterSeries ends the current lease.
func (w *walker) enterSeries(before, s *series) {
	w.endedLease = nil
	if s.boot == before.boot || s.booted.Sub(before.booted).Abs() <= maxBootDiff {
		return
	}
	if len(s.holes) > 0 && s.holes[0].at == 0 {
		w.addHole(hole{from: s.holes[0].from, to: s.booted})
	}
	if w.curHole != nil {
		w.endInHole(s.booted)
	}
	if w.cur != nil {
		w.cur.lastShown = before.lastTime()
		w.closeLease(s.booted)
	}
}

// walkSeries goes through a series: its holes, its snapshots, and its lines about the address, in their order.
func (w *walker) walkSeries(s *series) {
	holes, whole := s.holes, s.snapshots
	pass := func(at int) { // handles the holes and the snapshots before the line with the index "at"
		for {
			switch {
			case len(holes) > 0 && holes[0].at <= at && (len(whole) == 0 || holes[0].at <= whole[0].from):
				w.addHole(holes[0])
				holes = holes[1:]
			case len(whole) > 0 && whole[0].from <= at:
				if at >= whole[0].to || at == len(s.lines) {
					w.recordHolder(nil, s.lines[whole[0].from].Time)
				}
				whole = whole[1:]
			default:
				return
			}
		}
	}
	for _, at := range s.linesOf[w.addr] {
		pass(at)
		w.readLine(s.lines[at])
	}
	pass(len(s.lines))
}

// addHole adds a hole to curHole. It ignores the hole if all lost lines are about another address.
func (w *walker) addHole(h hole) {
	switch {
	case h.addr.IsValid() && h.addr != w.addr:
	case w.curHole == nil:
		w.curHole = &doubt{h.from, h.to}
	case h.to.IsZero() || h.to.After(w.curHole.to):
		w.curHole.to = h.to
	}
}

func (w *walker) readLine(l registry.Line) {
	held := l
	if held.Time = l.Since; l.Since.IsZero() {
		held.Time = l.Time
	}
	switch l.Event {
	case registry.Begin:
		w.beginLease(l)
	case registry.Held:
		w.recordHolder(&held, l.Time)
	case registry.End:
		if n := len(w.leases); w.cur == nil && n > 0 && !w.isFresh && w.curHole == nil && sameLease(w.lastLine, held) {
			w.cur = w.leases[n-1] // a snapshot before this line has already ended the lease
		} else {
			w.recordHolder(&held, l.Time)
		}
		w.cur.Missing = l.Missing
		w.closeLease(l.Time)
	}
}

func (w *walker) beginLease(l registry.Line) {
	whole := w.curHole == nil
	switch {
	case whole && w.isFresh && w.cur != nil && w.cur.matches(l): // the registry was lost and rebuilt: the lease goes on
	case whole && w.cur == nil && w.endedLease != nil && l.Container == "":
		w.cur = w.endedLease
		w.cur.End = time.Time{}
	case whole && w.cur != nil && sameLease(w.lastLine, l): // a snapshot before this line has already begun the lease
	default:
		w.recordHolder(nil, l.Time)
		w.openLease(l)
	}
	w.lastLine, w.lastSeen, w.isFresh, w.endedLease = l, l.Time, false, nil
}

// recordHolder records which lease has the address at a time. l is a line about this lease, and has the time when the
// lease began. If there is no lease, l is nil.
func (w *walker) recordHolder(l *registry.Line, at time.Time) {
	if same := l != nil && w.cur != nil && w.isCurrent(*l); !same {
		since := at
		if l != nil {
			since = l.Time
		}
		switch {
		// A line without a container is from a rebuilt registry, which does not know the true begin of the lease.
		case w.curHole != nil && l != nil && (since.Before(w.curHole.to) || w.isFresh && l.Container == ""):
			w.endInHole(since)
		case w.curHole != nil:
			w.endInHole(w.curHole.to)
		case w.cur != nil:
			if w.endedLease = nil; w.isFresh && l == nil {
				w.endedLease = w.cur
			}
			w.closeLease(since)
		}
		if l != nil {
			w.openLease(*l)
		}
	}
	if l != nil {
		w.lastLine = *l
	}
	w.curHole, w.lastSeen, w.isFresh = nil, at, false
}

// isCurrent reports whether a line is about the current lease. For the first lines of a series, it does not compare the
// begins, because the previous series had another registry or clock.
func (w *walker) isCurrent(l registry.Line) bool {
	if w.isFresh {
		return w.cur.matches(l) && (w.curHole == nil || l.Container != "")
	}
	return onlyKey(w.lastLine) == onlyKey(l) && (w.curHole == nil || isNear(w.lastLine.Time, l.Time))
}

// endInHole ends the current lease where curHole begins, and adds a doubt from this time to the time "until". If
// "until" is zero, the doubt has no end.
func (w *walker) endInHole(until time.Time) {
	from := later(w.curHole.from, w.lastSeen)
	if !until.IsZero() && until.Before(from) {
		from = until
	}
	w.closeLease(from)
	if until.IsZero() || from.Before(until) {
		w.doubts = append(w.doubts, doubt{from, until})
	}
	w.curHole, w.endedLease = nil, nil
}

func (w *walker) closeLease(at time.Time) {
	if w.cur != nil {
		w.cur.End, w.cur = later(at, w.cur.Begin), nil
	}
}

func (w *walker) openLease(l registry.Line) {
	w.cur = &Lease{Line: l, Begin: l.Time}
	if n := len(w.leases); n > 0 {
		w.cur.Begin = later(l.Time, w.leases[n-1].End)
	}
	w.leases, w.endedLease = append(w.leases, w.cur), nil
}

// sameLease reports whether two lines are about the same lease. The time of each line must be the begin of its lease.
func sameLease(a, b registry.Line) bool { return onlyKey(a) == onlyKey(b) && isNear(a.Time, b.Time) }

// onlyKey returns a line with only those members of l that identify the interface of the pod.
func onlyKey(l registry.Line) registry.Line {
	return registry.Line{Network: l.Network, Container: l.Container, Interface: l.Interface, NIC: l.NIC}
}

// isNear reports whether two times can be the begin of the same lease.
func isNear(a, b time.Time) bool { return a.Sub(b).Abs() <= maxBootDiff }

// matches reports whether a line is about the interface that has the lease. A line without a container may be about any
// interface.
func (l *Lease) matches(line registry.Line) bool {
	return line.Container == "" || onlyKey(l.Line) == onlyKey(line)
}
