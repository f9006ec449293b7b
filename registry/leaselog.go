// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/trace"
)

// The lease log answers which pod had an address at a time in the past. It has a line for each lease that begins or
// ends. The process that changes the registry appends the line, under the registry's lock. So the lines are in the
// order of the changes.
//
// A process first writes the registry, and then the lines. The registry also has the lines of its last change, and the
// size of the log with these lines. If the process is killed in between, the log has another size, and the next change
// or collection writes the lines. So no line tells of a change that did not happen. Only the lines of a killed process
// are missing for a time.
//
// Logs may reach a reader in pieces, twice, in another order, or damaged. So each line belongs to a series, and has a
// number in this series. All lines of a series are from one registry and one boot of the machine, and no process has
// set the clock in between. The numbers count the changes of leases. A snapshot has the number of the last change that
// it includes, the end of the previous series, and how many leases follow. So a reader can read the lines in any order,
// and sees which lines are lost.
//
// The log never makes an ADD or a DEL fail. If the log cannot be written, the lines wait in the registry.

// A LeaseLog says where the log is, and how large it may become.
//
//codec:describe exported
type LeaseLog struct {
	File     string `json:"file"`               // empty: there is no log
	MaxSize  int    `json:"maxSize,omitempty"`  // maximum size of a file, in MiB
	MaxFiles int    `json:"maxFiles,omitempty"` // maximum number of files; older files have a number after the name
}

// A Logging is the lease log of a node, and the state of this log.
//
//codec:describe
type Logging struct {
	LeaseLog
	Network string `json:"network"` // the network that configures the log; only this network switches it off
	// size of the log's file in bytes after the last change; if the file has another size, lines are missing
	Size   int    `json:"size"`
	Series string `json:"series,omitempty"` // the series of the next lines; empty: they begin a new series
	Number int    `json:"number,omitempty"` // the number of the last change in Series
	After  string `json:"after,omitempty"`  // the end of the previous series, see end
}

// The events of lines. There is a snapshot near the beginning of a file, and wherever lines may be missing. After the
// snapshot, the log has a line "held" for each lease of that moment. All other leases of the node have ended by the
// time of the snapshot. If the machine has booted since such a lease began, the lease ended by the time of the boot.
const (
	Begin    = "begin"
	End      = "end"
	Snapshot = "snapshot"
	Held     = "held"
	Clock    = "clock" // of earlier releases: the lines from the boot up to it are by another clock than later lines
	Off      = "off"   // the configuration no longer has the log: a reader does not know when leases end
)

// A Line is a line of the log: an object of JSON.
//
//codec:describe
type Line struct {
	Time   time.Time `json:"time"` // by the wall clock
	Event  string    `json:"event"`
	Series string    `json:"series,omitempty"` // lines of earlier releases have none
	// the number of the change in its series; for an event that is no change, the number of the last change before it
	Number    int        `json:"number,omitempty"`
	Address   netip.Addr `json:"address,omitzero"`
	Network   string     `json:"network,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	Container string     `json:"container,omitempty"` // empty: the address was found in use, by an unknown pod
	Interface string     `json:"interface,omitempty"` // the name of the attachment's interface
	NIC       int        `json:"nic,omitempty"`       // which interface of the attachment has the address, see Lease
	NetNS     string     `json:"netns,omitempty"`     // where an address was found in use
	ENI       string     `json:"eni,omitempty"`
	Instance  string     `json:"instance,omitempty"`
	Since     time.Time  `json:"since,omitzero"` // when the lease began, if that is not the time of the line
	// when a collection first missed the pod, if the pod ended without a DEL
	Missing time.Time `json:"missing,omitzero"`
	Booted  time.Time `json:"booted,omitzero"`  // when the machine booted, by the clock of the line
	Boot    string    `json:"boot,omitempty"`   // the ID of this boot
	Leases  int       `json:"leases,omitempty"` // of a snapshot: how many "held" lines it has
	After   string    `json:"after,omitempty"`  // of a snapshot: the end of the previous series
	Trace   string    `json:"trace,omitempty"`  // trace of the call that began or ended the lease: see package trace
}

// UseLog switches the node's log to the log in a network's configuration. Processes that have no configuration, such as
// a DEL or a collection, find the log in the registry. A network without a log does not change the log of another
// network. Before the registry has been built, UseLog does nothing, because the leases are not known yet.
func (s *State) UseLog(network string, want LeaseLog) {
	last := s.Log
	if want == last.LeaseLog || want.File == "" && network != last.Network || s.Instance.ID == "" {
		return
	}
	if last.File != "" && last.File != want.File {
		s.left = last
	}
	s.LogLines, s.checkLog = nil, true // the snapshot shows which leases have ended without a line
	if s.Log = (Logging{LeaseLog: want, Network: network, After: last.end()}); want.File == "" {
		s.Log = Logging{}
	}
}

// CheckLog makes the running change of the registry check the lease log. If a killed process has not written its lines,
// this change writes them.
func (s *State) CheckLog() { s.checkLog = true }

// note records the beginning or the end of a lease, for the log.
func (s *State) note(event string, a netip.Addr, l Lease, at time.Time) {
	if s.Log.File == "" {
		return
	}
	if at.IsZero() {
		at = now()
	}
	line := s.line(event, a, l, at)
	line.Trace = trace.ID()
	s.events = append(s.events, line)
}

func (s *State) line(event string, a netip.Addr, l Lease, at time.Time) Line {
	line := Line{Time: at.UTC().Round(0), Event: event, Address: a, Network: l.Network, Namespace: l.PodNamespace,
		Pod:       l.PodName,
		Container: l.ContainerID, Interface: l.IfName, NIC: l.NIC, ENI: l.ENI, Instance: s.Instance.ID}
	if l.Key == (Key{}) {
		line.NetNS = l.NetNS
	}
	if event != Begin {
		line.Since, line.Missing = l.Since.UTC().Round(0), l.MissingSince.UTC().Round(0)
	}
	return line
}

// snapshot returns the lines of a snapshot of all leases.
func (s *State) snapshot() []Line {
	when := now()
	lines := []Line{{Time: when, Event: Snapshot, Instance: s.Instance.ID, Booted: s.booted.UTC(), Boot: BootID(),
		Leases: s.Leases.Len(), After: s.Log.After}}
	for a, l := range s.Leases.All() {
		lines = append(lines, s.line(Held, a, l, when))
	}
	for i := range lines {
		lines[i].Series, lines[i].Number = s.Log.Series, s.Log.Number
	}
	return lines
}

// number gives the lines of this change their numbers in the series.
func (s *State) number() {
	for i := range s.events {
		s.Log.Number++
		s.events[i].Series, s.events[i].Number = s.Log.Series, s.Log.Number
	}
}

// begin begins a series. If the registry does not have the end of the previous series, begin looks for it in f, the
// log's file.
func (l *Logging) begin(instance string, f *os.File, size int) {
	l.After = cmp.Or(l.end(), l.After)
	if l.After == "" && f != nil {
		l.After = endOf(instance, f, size)
	}
	l.Series, l.Number = strconv.FormatUint(rand.Uint64(), 36), 0
}

// end is the end of the series so far: its name and the number of its last change.
func (l Logging) end() string {
	if l.Series == "" {
		return ""
	}
	return l.Series + "." + strconv.Itoa(l.Number)
}

// endOf returns the end of the last series in a file. It returns "" if an earlier release or another instance has
// written the end of the file.
func endOf(instance string, f *os.File, size int) string {
	const last = 64 << 10 // more than the longest line
	from := max(0, size-last)
	text := make([]byte, size-from)
	n, _ := f.ReadAt(text, int64(from))
	for _, text := range slices.Backward(bytes.Split(text[:n], []byte("\n"))) {
		var line Line
		if json.Unmarshal(text, &line) == nil {
			if line.Instance != instance {
				return ""
			}
			return Logging{Series: line.Series, Number: line.Number}.end()
		}
	}
	return ""
}
