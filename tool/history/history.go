// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package history reads lease logs: who had which address at a time in the past.
//
// A log has every begin and end of a lease, but not always once. After a kill or a full disk a
// node repeats lines, and a snapshot says which leases there are. So the reader compares each line
// with what it has read of the same node.
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

	exact bool // the log has the end itself, and not only that it was over
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
	nodes  map[string]*node
	leases map[netip.Addr][]*Lease // in the order of Begin, once it is read
}

// A node is what the lines of one node say, so far.
type node struct {
	leases map[netip.Addr][]*Lease // in the order of the lines
	open   map[netip.Addr]*Lease   // without an end
	booted time.Time
	boot   []*Lease // that began since
	ended  []*Lease // that this boot has ended

	shot    time.Time             // the time of the snapshot whose leases follow; zero: none
	missing map[netip.Addr]*Lease // leases that the snapshot has not shown yet
}

// sameBoot is by how much the boot time of one boot can differ, if a process computes it again.
const sameBoot = 2 * time.Second

// add reads the next line of a node.
func (n *node) add(line registry.Line) {
	if line.Event != registry.Held {
		n.closeMissing()
	}
	switch line.Event {
	case registry.Begin:
		n.begin(line, line.Time)
	case registry.Held:
		n.held(line)
	case registry.End:
		n.end(line)
	case registry.Snapshot:
		n.snapshot(line)
	case registry.Clock:
		n.setClock(line.Booted)
	case registry.Off:
		for a := range n.open {
			n.close(a, line.Time, false)
		}
	}
}

// find returns the lease of the line's address and attachment at a time, or nil.
func (n *node) find(line registry.Line, at time.Time) *Lease {
	for _, l := range slices.Backward(n.leases[line.Address]) {
		if l.has(line) && l.covers(at.Add(-time.Second), at.Add(time.Second)) {
			return l
		}
	}
	return nil
}

func (n *node) begin(line registry.Line, at time.Time) {
	if ls := n.leases[line.Address]; line.Container == "" && len(ls) > 0 && !ls[len(ls)-1].exact {
		n.resume(ls[len(ls)-1])
		return // the registry was lost, and did not know yet that the pod goes on
	}
	if l := n.find(line, at); l != nil && l.Container == line.Container {
		return // a line that is repeated
	}
	l := &Lease{Line: line, Begin: at}
	n.boot = append(n.boot, l)
	n.leases[line.Address] = append(n.leases[line.Address], l)
	if next := n.open[line.Address]; next != nil && at.Before(next.Begin) { // a line that comes late
		l.End = next.Begin
		return
	}
	n.close(line.Address, at, false)
	n.open[line.Address] = l
}

// held is a lease of a snapshot. If the log has had no line of it for a time, it is the same lease
// nevertheless.
func (n *node) held(line registry.Line) {
	if l := n.missing[line.Address]; l != nil && l.has(line) {
		delete(n.missing, line.Address)
		return
	}
	if l := n.find(line, line.Since); l != nil && !l.exact {
		n.resume(l)
		return
	}
	n.begin(line, line.Since)
}

// resume opens a lease again that seemed to have ended.
func (n *node) resume(l *Lease) {
	l.End = time.Time{}
	n.open[l.Address] = l
}

func (n *node) end(line registry.Line) {
	l := n.find(line, line.Since)
	switch open := n.open[line.Address]; {
	case open != nil && open.has(line):
		l = open
	case l == nil:
		n.begin(line, line.Since)
		l = n.find(line, line.Since)
	}
	if l == nil || l.exact {
		return
	}
	l.End, l.exact, l.Missing = line.Time, true, line.Missing
	if n.open[line.Address] == l {
		delete(n.open, line.Address)
	}
}

// close ends the open lease of an address.
func (n *node) close(a netip.Addr, at time.Time, exact bool) {
	l := n.open[a]
	if l == nil {
		return
	}
	delete(n.open, a)
	l.End, l.exact = at, exact
	if at.Before(l.Begin) {
		l.End = l.Begin
	}
}

// snapshot ends what has not survived a boot. The other leases are in the lines that follow, or
// have ended.
func (n *node) snapshot(line registry.Line) {
	rebooted := !n.booted.IsZero() && n.booted.Sub(line.Booted).Abs() > sameBoot
	var ended []*Lease
	for a, l := range n.open {
		if rebooted || l.Begin.Before(line.Booted.Add(-sameBoot)) {
			n.close(a, line.Booted, true)
			ended = append(ended, l)
		}
	}
	if rebooted {
		n.boot, n.ended = nil, nil
	}
	n.ended = append(n.ended, ended...)
	n.booted, n.shot, n.missing = line.Booted, line.Time, map[netip.Addr]*Lease{}
	for a, l := range n.open {
		n.missing[a] = l
	}
}

// closeMissing ends the leases that a snapshot does not have.
func (n *node) closeMissing() {
	for a, l := range n.missing {
		if n.open[a] == l {
			n.close(a, n.shot, false)
		}
	}
	n.missing = nil
}

// setClock moves the times since the boot to the clock of the next lines.
func (n *node) setClock(booted time.Time) {
	step := booted.Sub(n.booted)
	if n.booted.IsZero() {
		return
	}
	for _, l := range n.boot {
		l.Begin = l.Begin.Add(step)
		if !l.End.IsZero() {
			l.End = l.End.Add(step)
		}
	}
	for _, l := range n.ended {
		if l.End = booted; booted.Before(l.Begin) {
			l.End = l.Begin
		}
	}
	n.booted = booted
}

// finish brings the leases of all nodes together. An address that has moved to another node
// without an end on the first one, which has crashed, was there until then.
func (h *History) finish() {
	h.leases = map[netip.Addr][]*Lease{}
	for _, n := range h.nodes {
		n.closeMissing()
		for a, ls := range n.leases {
			h.leases[a] = append(h.leases[a], ls...)
		}
	}
	for _, ls := range h.leases {
		slices.SortStableFunc(ls, func(a, b *Lease) int {
			return cmp.Or(a.Begin.Compare(b.Begin), cmp.Compare(a.Instance, b.Instance))
		})
		for i, l := range ls {
			if l.End.IsZero() && i+1 < len(ls) {
				l.End = ls[i+1].Begin
			}
		}
	}
}

// Of lists the leases of an address, the earliest first.
func (h *History) Of(a netip.Addr) []*Lease { return h.leases[a] }

// Between lists the leases that an address had from the first time to before the second. There is
// more than one if the address has changed its pod meanwhile.
func (h *History) Between(a netip.Addr, from, to time.Time) (found []*Lease) {
	ls := h.leases[a]
	i, _ := slices.BinarySearchFunc(ls, to, func(l *Lease, to time.Time) int { return l.Begin.Compare(to) })
	for i--; i >= 0 && ls[i].covers(from, to); i-- {
		found = append(found, ls[i])
	}
	slices.Reverse(found)
	return found
}

// At returns the lease of an address at a time, or nil.
func (h *History) At(a netip.Addr, at time.Time) *Lease {
	if found := h.Between(a, at, at.Add(1)); len(found) > 0 {
		return found[len(found)-1]
	}
	return nil
}
