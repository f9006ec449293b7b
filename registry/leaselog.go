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

// The lease log shows which pod had an address at a time in the past. It gets a line when a lease begins, and a line
// when a lease ends. A process appends the lines while it holds the registry's lock, so they are in the order of the
// changes.
//
// A process first writes the registry. The registry then has the new lines, and the size that the log will have with
// these lines. After that, the process appends the lines to the log. If the process is killed between the two steps,
// the log has another size, and the next change or collection appends the lines. Until then, the log lacks these lines.
// But the log never has a line about a change that did not happen.
//
// A copy of a log may lack lines, or have damaged lines, lines in another order, or the same line twice. So each line
// belongs to a series, and has a number in this series. All lines of a series are from one registry, one boot of the
// machine, and one setting of the clock. The numbers count the changes of leases. A line "snapshot" has the number of
// the last change before the snapshot, and the end of the previous series (see seriesEnd). The snapshot also has the
// number of lines "held" that follow the snapshot: see [Held].
//
// A problem with the log never makes an ADD or a DEL fail. If the log cannot be written, the new lines wait in the
// registry.

// A LeaseLog is the configuration of the lease log: the file, and the maximum size.
//
//codec:describe exported
type LeaseLog struct {
	File    string `json:"file"`              // path of the log; empty: there is no log
	MaxSize int    `json:"maxSize,omitempty"` // maximum size of each file, in MiB
	// maximum number of files; the names of the older files are File.1, File.2 and so on
	MaxFiles int `json:"maxFiles,omitempty"`
}

// A Logging is the configuration and the state of a node's lease log.
//
//codec:describe
type Logging struct {
	LeaseLog
	// the network whose configuration has this log; only the configuration of this network can switch the log off
	Network string `json:"network"`
	// size in bytes that File must have after the last change; if File has another size, File lacks lines
	Size   int    `json:"size"`
	Series string `json:"series,omitempty"` // the series of the next lines; empty: the next lines begin a new series
	Number int    `json:"number,omitempty"` // the number of the last change in Series
	After  string `json:"after,omitempty"`  // the end of the previous series, see seriesEnd
}

// The events of lines. A file of the log has a snapshot near its beginning, and at each place where lines may be
// missing. After a snapshot, there is a line "held" for each lease that the registry had. If a lease began before the
// snapshot and has no line "held", the lease ended before the snapshot. If the machine booted between the beginning of
// the lease and the snapshot, the lease ended before the boot.
const (
	Begin    = "begin"
	End      = "end"
	Snapshot = "snapshot"
	Held     = "held"
	// only earlier releases write this event: the clock was set, and the earlier lines since the boot are from the old
	// setting
	Clock = "clock"
	Off   = "off" // the configuration no longer has the log, so the log gets no lines about later changes
)

// A Line is a line of the log: a JSON object.
//
//codec:describe
type Line struct {
	Time   time.Time `json:"time"` // by the wall clock
	Event  string    `json:"event"`
	Series string    `json:"series,omitempty"` // empty in lines of earlier releases
	// the number of the change in the series; if Event is neither Begin nor End, the number of the last change before
	// the line
	Number    int        `json:"number,omitempty"`
	Address   netip.Addr `json:"address,omitzero"`
	Network   string     `json:"network,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	Container string     `json:"container,omitempty"` // empty: an unknown pod uses the address
	Interface string     `json:"interface,omitempty"` // the name of the attachment's interface
	NIC       int        `json:"nic,omitempty"`       // see Lease.NIC
	NetNS     string     `json:"netns,omitempty"`     // the namespace in which an unknown pod uses the address
	ENI       string     `json:"eni,omitempty"`
	Instance  string     `json:"instance,omitempty"`
	Since     time.Time  `json:"since,omitzero"` // when the lease began; zero if Event is Begin
	// when a collection first saw that the pod had ended without a DEL; zero if no collection has seen this
	Missing time.Time `json:"missing,omitzero"`
	Booted  time.Time `json:"booted,omitzero"`  // of a snapshot: the boot time, by the wall clock as set at Time
	Boot    string    `json:"boot,omitempty"`   // of a snapshot: the ID of this boot
	Leases  int       `json:"leases,omitempty"` // of a snapshot: how many "held" lines follow
	After   string    `json:"after,omitempty"`  // of a snapshot: the end of the previous series
	// the distributed trace of the CNI call that began or ended the lease: see package trace
	Trace string `json:"trace,omitempty"`
}

// UseLog records in the registry which lease log a network's configuration has. Processes that do not read this
// configuration, such as a DEL or a collection, find the log in the registry. If the configuration has no log, UseLog
// switches off a recorded log of the same network. If several networks have the same log, only the network that has
// called UseLog last can switch the log off. If no process has built the registry yet, UseLog does nothing.
func (s *State) UseLog(network string, want LeaseLog) {
	last := s.Log
	if want == last.LeaseLog && want.File != "" {
		s.Log.Network = network // the network that began the log may be gone
	}
	if want == last.LeaseLog || want.File == "" && network != last.Network || s.Instance.ID == "" {
		return
	}
	if last.File != "" && last.File != want.File {
		s.oldLog = last
	}
	// drop the old lines, because the next lines are a snapshot
	s.LogLines, s.checkLog = nil, true
	if s.Log = (Logging{LeaseLog: want, Network: network, After: last.seriesEnd()}); want.File == "" {
		s.Log = Logging{}
	}
}

// CheckLog makes the current Update check the lease log. If a killed process has not written lines, the Update appends
// these lines.
func (s *State) CheckLog() { s.checkLog = true }

// addEvent makes a line about the beginning or the end of a lease. The current Update will append this line to the log.
func (s *State) addEvent(event string, a netip.Addr, l Lease, at time.Time) {
	if s.Log.File == "" {
		return
	}
	if at.IsZero() {
		at = lineTime()
	}
	line := s.newLine(event, a, l, at)
	line.Trace = trace.ID()
	s.events = append(s.events, line)
}

func (s *State) newLine(event string, a netip.Addr, l Lease, at time.Time) Line {
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

// snapshotLines returns the lines of a snapshot: the line "snapshot", and a line "held" for each lease.
func (s *State) snapshotLines() []Line {
	when := lineTime()
	lines := []Line{{Time: when, Event: Snapshot, Instance: s.Instance.ID, Booted: s.bootTime.UTC(), Boot: BootID(),
		Leases: s.Leases.Len(), After: s.Log.After}}
	for a, l := range s.Leases.All() {
		lines = append(lines, s.newLine(Held, a, l, when))
	}
	for i := range lines {
		lines[i].Series, lines[i].Number = s.Log.Series, s.Log.Number
	}
	return lines
}

// numberEvents sets the series and the numbers of the lines that addEvent has added.
func (s *State) numberEvents() {
	for i := range s.events {
		s.Log.Number++
		s.events[i].Series, s.events[i].Number = s.Log.Series, s.Log.Number
	}
}

// beginSeries begins a new series. It sets the field After to the end of the previous series (see seriesEnd). It takes
// this end from the registry, or else from the log's file f.
func (l *Logging) beginSeries(instance string, f *os.File, size int) {
	l.After = cmp.Or(l.seriesEnd(), l.After)
	if l.After == "" && f != nil {
		l.After = lastSeriesEnd(instance, f, size)
	}
	l.Series, l.Number = strconv.FormatUint(rand.Uint64(), 36), 0
}

// seriesEnd returns the end of the current series: the name of the series, and the number of its last change. If there
// is no series, seriesEnd returns "".
func (l Logging) seriesEnd() string {
	if l.Series == "" {
		return ""
	}
	return l.Series + "." + strconv.Itoa(l.Number)
}

// lastSeriesEnd returns the end of the last series in a file, in the format of seriesEnd. If an earlier release or
// another instance has written the last line of the file, lastSeriesEnd returns "".
func lastSeriesEnd(instance string, f *os.File, size int) string {
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
			return Logging{Series: line.Series, Number: line.Number}.seriesEnd()
		}
	}
	return ""
}
