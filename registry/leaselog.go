// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// The lease log answers who had an address at a time in the past: a line for each lease that
// begins and ends. The process that changes the registry appends it, under the registry's lock.
// So lines are in the order of the changes, and no line of another process is in between.
//
// The registry comes first, and the line after it. The file of the registry has the lines of its
// last change, and the size that the log has with them. If a process is killed in between, the log
// has another size, and the next change or collection writes the lines. So no line says what did
// not happen, and only the lines of a killed process are missing, until then.
//
// A log cannot make an ADD or a DEL fail. If it cannot be written, the lines wait in the registry.

// A LeaseLog says where the log is, and how large it may become.
type LeaseLog struct {
	File     string `json:"file"`               // empty: there is no log
	MaxSize  int    `json:"maxSize,omitempty"`  // of a file, in MiB
	MaxFiles int    `json:"maxFiles,omitempty"` // this file, and older ones that have a number after the name
}

// A Logging is the log of a node.
type Logging struct {
	LeaseLog
	Network string `json:"network"` // whose configuration has the log; only that one switches it off
	Size    int    `json:"size"`    // of the file in bytes, with the last lines; another size means that lines are missing
}

// The events of lines. A snapshot is near the beginning of a file, and wherever lines may be missing. The
// leases of that moment follow it, as held: all other leases of the node have ended, at the latest
// then. If the machine has booted since, they had ended by that time.
const (
	Begin    = "begin"
	End      = "end"
	Snapshot = "snapshot"
	Held     = "held"
	Clock    = "clock" // somebody has set the clock: the lines since the boot are by another clock than the next ones
	Off      = "off"   // the configuration has the log no more: nobody knows when leases end
)

// A Line is one of the log: an object of JSON.
type Line struct {
	Time      time.Time  `json:"time"` // by the wall clock
	Event     string     `json:"event"`
	Address   netip.Addr `json:"address,omitzero"`
	Network   string     `json:"network,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	Container string     `json:"container,omitempty"` // empty: the address was found in use, nobody knows by which pod
	Interface string     `json:"interface,omitempty"` // the name of the attachment's interface
	NIC       int        `json:"nic,omitempty"`       // which interface of the attachment it is, see Lease
	NetNS     string     `json:"netns,omitempty"`     // where an address was found in use
	ENI       string     `json:"eni,omitempty"`
	Instance  string     `json:"instance,omitempty"`
	Since     time.Time  `json:"since,omitzero"`   // when the lease began, if that is not the time of the line
	Missing   time.Time  `json:"missing,omitzero"` // since when a collection has missed the pod, which ended without a DEL
	Booted    time.Time  `json:"booted,omitzero"`  // when the machine booted, by the clock of the line
}

func (l *Line) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "time", &l.Time, codec.Time)
		codec.Field(c, "event", &l.Event, codec.Text)
		codec.Optional(c, "address", &l.Address, codec.Addr)
		codec.Optional(c, "network", &l.Network, codec.Text)
		codec.Optional(c, "namespace", &l.Namespace, codec.Text)
		codec.Optional(c, "pod", &l.Pod, codec.Text)
		codec.Optional(c, "container", &l.Container, codec.Text)
		codec.Optional(c, "interface", &l.Interface, codec.Text)
		codec.Optional(c, "nic", &l.NIC, codec.Number)
		codec.Optional(c, "netns", &l.NetNS, codec.Text)
		codec.Optional(c, "eni", &l.ENI, codec.Text)
		codec.Optional(c, "instance", &l.Instance, codec.Text)
		codec.Optional(c, "since", &l.Since, codec.Time)
		codec.Optional(c, "missing", &l.Missing, codec.Time)
		codec.Optional(c, "booted", &l.Booted, codec.Time)
	})
}

func (l *Logging) describe(c *codec.Codec) {
	c.Object(func() {
		l.members(c)
		codec.Field(c, "network", &l.Network, codec.Text)
		codec.Field(c, "size", &l.Size, codec.Number)
	})
}

// Describe repeats the struct tags. It is exported because a LeaseLog is part of configurations,
// too.
func (l *LeaseLog) Describe(c *codec.Codec) { c.Object(func() { l.members(c) }) }

func (l *LeaseLog) members(c *codec.Codec) {
	codec.Field(c, "file", &l.File, codec.Text)
	codec.Optional(c, "maxSize", &l.MaxSize, codec.Number)
	codec.Optional(c, "maxFiles", &l.MaxFiles, codec.Number)
}

// UseLog makes the log the one that a network's configuration wants. Processes that have no
// configuration, such as a DEL or a collection, find it in the registry. A network without a log
// leaves that of another network alone. Nothing is logged before the registry has been built: its
// leases are not known yet.
func (s *State) UseLog(network string, want LeaseLog) {
	last := s.Log
	if want == last.LeaseLog || want.File == "" && network != last.Network || s.Instance.ID == "" {
		return
	}
	if last.File != "" && last.File != want.File {
		s.left = last.LeaseLog
	}
	s.LogLines, s.checkLog = nil, true // a snapshot ends what nobody has written meanwhile
	if s.Log = (Logging{LeaseLog: want, Network: network}); want.File == "" {
		s.Log = Logging{}
	}
}

// CheckLog has the change write the lines that a killed process has not written.
func (s *State) CheckLog() { s.checkLog = true }

// note records what happens to a lease, for the log.
func (s *State) note(event string, a netip.Addr, l Lease, at time.Time) {
	if s.Log.File == "" {
		return
	}
	if at.IsZero() {
		at = now()
	}
	s.events = append(s.events, s.line(event, a, l, at))
}

func (s *State) line(event string, a netip.Addr, l Lease, at time.Time) Line {
	line := Line{Time: at.UTC().Round(0), Event: event, Address: a, Network: l.Network, Namespace: l.PodNamespace, Pod: l.PodName,
		Container: l.ContainerID, Interface: l.IfName, NIC: l.NIC, ENI: l.ENI, Instance: s.Instance.ID}
	if l.Key == (Key{}) {
		line.NetNS = l.NetNS
	}
	if event != Begin {
		line.Since, line.Missing = l.Since.UTC().Round(0), l.MissingSince.UTC().Round(0)
	}
	return line
}

// snapshot returns the lines for all leases.
func (s *State) snapshot() []Line {
	when := now()
	lines := []Line{{Time: when, Event: Snapshot, Instance: s.Instance.ID, Booted: s.booted.UTC()}}
	for a, l := range s.Leases.All() {
		lines = append(lines, s.line(Held, a, l, when))
	}
	return lines
}
