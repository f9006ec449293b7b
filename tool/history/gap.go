// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package history

import (
	"net/netip"
	"regexp"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A gap is a time of which a node has said something that is lost. It ends with the next whole snapshot of the node: that has all
// leases of its moment.
type gap struct {
	addr netip.Addr // that it is about; zero: of any
	from time.Time
	last time.Time // the lost line is not from after this time
	to   time.Time // zero: no snapshot ends it
}

// concerns reports whether the lost line may have been about the time from the first to before the second.
func (g gap) concerns(from, to time.Time) bool {
	return g.from.Before(to) && (g.to.IsZero() || from.Before(g.to))
}

// fill ends the gaps that a whole snapshot ends.
func (n *node) fill(at time.Time) {
	for i, g := range n.gaps {
		if g.to.IsZero() && g.last.Before(at) {
			n.gaps[i].to = at
		}
	}
}

// doubt makes all that the lines say of the node's addresses unsure.
func (n *node) doubt() {
	for a, ls := range n.leases {
		n.gaps = append(n.gaps, gap{addr: a})
		for _, l := range ls {
			l.proven = time.Time{}
		}
	}
}

// A fragment is a part of a line: its time, its event and its address, as far as these are left. Or it stands for all lines at the
// end of a file.
type fragment struct {
	line registry.Line
	rest bool
}

// The beginning of a line, as nodes write it: the time, the event, and the address of a lease.
var (
	timePart    = regexp.MustCompile(`^\{"time":"([^"]*)"`)
	eventPart   = regexp.MustCompile(`^\{"time":"[^"]*","event":"([a-z]+)"`)
	addressPart = regexp.MustCompile(`^\{"time":"[^"]*","event":"[a-z]+","address":"([^"]*)"`)
)

// newFragment reads what is left of a line.
func newFragment(text []byte) (f fragment) {
	if m := timePart.FindSubmatch(text); m != nil {
		f.line.Time, _ = time.Parse(time.RFC3339Nano, string(m[1]))
	}
	if m := eventPart.FindSubmatch(text); m != nil {
		f.line.Event = string(m[1])
	}
	if m := addressPart.FindSubmatch(text); m != nil {
		f.line.Address, _ = netip.ParseAddr(string(m[1]))
	}
	f.line.Time = f.line.Time.UTC()
	return f
}

// names reports whether what is left tells the line from all others.
func (f fragment) names() bool {
	lease := f.line.Event == registry.Begin || f.line.Event == registry.End || f.line.Event == registry.Held
	return !f.line.Time.IsZero() && f.line.Event != "" && (!lease || f.line.Address.IsValid())
}

// A name is what tells a line from all others of the nodes.
type name struct {
	time  time.Time
	event string
	addr  netip.Addr
}

func nameOf(line registry.Line) name { return name{line.Time, line.Event, line.Address} }
