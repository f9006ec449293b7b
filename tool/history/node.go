// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package history

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A node is what the lines of one node say, so far.
type node struct {
	leases map[netip.Addr][]*Lease // in the order of the lines
	open   map[netip.Addr]*Lease   // without an end
	booted time.Time
	boot   []*Lease // that began since
	ended  []*Lease // that this boot has ended

	shot    registry.Line         // the snapshot whose leases follow
	held    int                   // these leases, so far
	missing map[netip.Addr]*Lease // leases that the snapshot has not shown yet

	gaps []gap
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
		n.held++
		n.hold(line)
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
		n.resume(ls[len(ls)-1], line.Time)
		return // the registry was lost, and did not know yet that the pod goes on
	}
	if l := n.find(line, at); l != nil && l.Container == line.Container {
		l.prove(line.Time)
		return // a line that is repeated
	}
	l := &Lease{Line: line, Begin: at, proven: line.Time}
	n.boot = append(n.boot, l)
	n.leases[line.Address] = append(n.leases[line.Address], l)
	if next := n.open[line.Address]; next != nil && at.Before(next.Begin) { // a line that comes late
		l.End = next.Begin
		return
	}
	n.close(line.Address, at, false)
	n.open[line.Address] = l
}

// hold is a lease of a snapshot. If the log has had no line of it for a time, it is the same lease
// nevertheless.
func (n *node) hold(line registry.Line) {
	if l := n.missing[line.Address]; l != nil && l.has(line) {
		delete(n.missing, line.Address)
		l.prove(line.Time)
		return
	}
	if l := n.find(line, line.Since); l != nil && !l.exact {
		n.resume(l, line.Time)
		return
	}
	n.begin(line, line.Since)
}

// resume opens a lease again that seemed to have ended.
func (n *node) resume(l *Lease, at time.Time) {
	l.End = time.Time{}
	n.open[l.Address] = l
	l.prove(at)
}

// prove notes that a line says that the lease was there at a time.
func (l *Lease) prove(at time.Time) {
	if l.proven.Before(at) {
		l.proven = at
	}
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
	l.End, l.exact, l.Missing, l.proven = line.Time, true, line.Missing, line.Time
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
	n.booted, n.shot, n.held, n.missing = line.Booted, line, 0, map[netip.Addr]*Lease{}
	for a, l := range n.open {
		n.missing[a] = l
	}
}

// closeMissing ends the leases that a snapshot does not have. If a line of the snapshot is lost, nobody knows which these are.
func (n *node) closeMissing() {
	if n.missing == nil {
		return
	}
	if n.held < n.shot.Leases {
		n.gaps = append(n.gaps, gap{from: n.shot.Time, last: n.shot.Time})
		n.missing = nil
		return
	}
	n.fill(n.shot.Time)
	for a, l := range n.missing {
		if n.open[a] == l {
			n.close(a, n.shot.Time, false)
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
		l.Begin, l.proven = l.Begin.Add(step), l.proven.Add(step)
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
