// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package history

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A node has the lines of one node's lease logs. The lines are divided into series.
type node struct {
	instance      string // "" if the lines do not name the instance
	series        []*series
	endLost       bool     // an unknown number of lines may be lost after the node's last line
	fragmentNames []string // the series that damaged lines name
	lost          bool     // all lines of one of the series in fragmentNames are damaged or lost
}

// A series has lines of a node, sorted by number. They are from one registry, one boot and one clock.
type series struct {
	name      string
	old       bool // in the log, its lines have no numbers
	boot      string
	booted    time.Time // when the machine booted, as a snapshot says; zero: the log has no snapshot of this series
	previous  string    // name and last number of the previous series, as "name.number"
	lines     []registry.Line
	holes     []hole               // sorted by the field "at"
	linesOf   map[netip.Addr][]int // indices of the lines of each address
	snapshots []wholeSnapshot
	lostAddrs map[int]netip.Addr // addresses of damaged lines, by number

	// In an old series, tornNumber is the number of the last change, which may be a damaged line. In other series, it
	// is about damaged lines without a readable number: 1 more than the number of the line before them. 0: there are no
	// such lines.
	tornNumber   int
	lastSnapshot int // index of the line with which the last snapshot begins
}

// A hole is a place in a series where lines are lost. The field "at" is the index of the line after the lost lines.
type hole struct {
	at       int
	addr     netip.Addr // address of all lost lines; zero: the lost lines may have any address
	from, to time.Time  // the node wrote the lost lines in this period; if "to" is zero, no line follows the hole
}

// A wholeSnapshot is a snapshot that still has a line for each lease.
type wholeSnapshot struct{ from, to int } // the indices of its first line, and of the first line after it

// maxBootDiff is the greatest difference between the times that two processes compute for the same boot.
const maxBootDiff = 2 * time.Second

// maxLateness limits how much older a line can be than the line before it. A process reads the clock before it waits
// for the lock of the registry.
const maxLateness = time.Minute

func newSeries(name string) *series {
	return &series{name: name, linesOf: map[netip.Addr][]int{}}
}

// isChange reports whether a line begins or ends a lease. Other lines have no number of their own.
func isChange(l registry.Line) bool { return l.Event == registry.Begin || l.Event == registry.End }

// addOld adds a line that an earlier release wrote, and gives the line a number. In the logs of earlier releases, a
// snapshot can come before changes that the snapshot includes. Then the snapshot's lines get the number of the last of
// these changes, so that sortLines puts the snapshot after these changes.
func (n *node) addOld(l registry.Line) {
	last := n.lastOld()
	boots := !l.Booted.IsZero() && last.booted.Sub(l.Booted).Abs() > maxBootDiff
	if clock := l.Event == registry.Clock; boots && (clock || !last.booted.IsZero()) {
		next := newSeries(strconv.Itoa(len(n.series)))
		next.old, next.boot = true, next.name
		if clock {
			next.boot = cmp.Or(last.boot, next.name)
		}
		n.series = append(n.series, next)
		last = next
	}
	if boots {
		last.booted = l.Booted
	}
	if isChange(l) {
		last.tornNumber++
		for i := last.lastSnapshot; i < len(last.lines) && !l.Time.After(last.lines[last.lastSnapshot].Time) &&
			!isChange(last.lines[i]); i++ {
			last.lines[i].Number = last.tornNumber
		}
	}
	if l.Event == registry.Snapshot {
		last.lastSnapshot = len(last.lines)
	}
	if l.Number = last.tornNumber; l.Event != registry.Clock {
		last.lines = append(last.lines, l)
	}
}

// lastOld returns the last old series. If there is none, lastOld adds one.
func (n *node) lastOld() *series {
	for _, s := range slices.Backward(n.series) {
		if s.old {
			return s
		}
	}
	s := newSeries(strconv.Itoa(len(n.series)))
	s.old, s.boot = true, s.name
	n.series = append(n.series, s)
	return s
}

// findHoles sorts the series of a node and their lines, and finds the holes.
func (n *node) findHoles() {
	n.series = slices.DeleteFunc(n.series, func(s *series) bool { return len(s.lines) == 0 })
	for _, s := range n.series {
		s.sortLines()
		s.readSnapshots()
	}
	clocks := n.setClocks()
	slices.SortStableFunc(n.series, func(a, b *series) int { return a.firstTime().Compare(b.firstTime()) })
	n.dropUnclear(clocks)
	for i, s := range n.series {
		s.indexLines()
		switch {
		case i > 0:
			n.addHoleBefore(n.series[i-1], s)
		case s.changesBefore() > 0 || s.previous != "": // the log has lost its first lines
			s.holes = slices.Insert(s.holes, 0, hole{to: s.firstTime()})
		case !s.old: // the leases at the first line are unknown, until later lines show them
			s.holes = slices.Insert(s.holes, 0, hole{from: s.firstTime(), to: s.firstTime()})
		}
	}
	if len(n.series) == 0 {
		return
	}
	s := n.series[len(n.series)-1]
	end := hole{at: len(s.lines), from: s.lastTime()}
	switch last := s.lines[len(s.lines)-1]; {
	case n.endLost, last.Event == registry.Off:
		s.holes = append(s.holes, end)
	case s.maxTornNumber() > last.Number:
		end.addr = s.lostAddr(last.Number, s.maxTornNumber())
		s.holes = append(s.holes, end)
	}
}

// maxTornNumber returns the highest number of a damaged line of the series, or 0 if no line is damaged. If a damaged
// line has no readable number, tornNumber stands for its number. In an old series, the result is at least the number of
// the last change.
func (s *series) maxTornNumber() int {
	return max(s.tornNumber, slices.Max(append(slices.Collect(maps.Keys(s.lostAddrs)), 0)))
}

// numberBefore returns the number of the line that the node wrote just before the line l. The log may have lost that
// line.
func numberBefore(l registry.Line) int {
	if isChange(l) {
		return l.Number - 1
	}
	return l.Number
}

// changesBefore returns how many changes of the series are lost before the first line that the log still has.
func (s *series) changesBefore() int { return numberBefore(s.lines[0]) }

// opensWhole reports whether the first snapshot of the series shows all leases. For an old series, the result is always
// true.
func (s *series) opensWhole() bool {
	first := slices.IndexFunc(s.lines, func(l registry.Line) bool { return l.Event == registry.Snapshot })
	return s.old || first >= 0 && len(s.snapshots) > 0 && s.snapshots[0].from == first
}

func (s *series) firstTime() time.Time { return s.lines[0].Time }
func (s *series) lastTime() time.Time  { return s.lines[len(s.lines)-1].Time }

// eventOrder returns the rank of a line among lines with the same number. For Clock and unknown events, it is -1.
func eventOrder(l registry.Line) int {
	return slices.Index([]string{registry.Begin, registry.End, registry.Snapshot, registry.Held, registry.Off}, l.Event)
}

// sortLines sorts the lines. It drops different changes with the same number, because they contradict each other. They
// can be from a disk that was restored.
func (s *series) sortLines() {
	slices.SortStableFunc(s.lines, func(a, b registry.Line) int {
		if a.Number != b.Number || isChange(a) || isChange(b) {
			return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(eventOrder(a), eventOrder(b)))
		}
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(eventOrder(a), eventOrder(b)))
	})
	twice := map[int]int{}
	for _, l := range s.lines {
		if isChange(l) {
			twice[l.Number]++
		}
	}
	if kept := slices.DeleteFunc(slices.Clone(s.lines), func(l registry.Line) bool {
		return isChange(l) && twice[l.Number] > 1
	}); len(kept) > 0 {
		s.lines = kept
	}
}

// readSnapshots reads the boot, the previous series and the whole snapshots of the series.
func (s *series) readSnapshots() {
	for i := 0; i < len(s.lines); i++ {
		l := s.lines[i]
		if l.Event != registry.Snapshot {
			continue
		}
		s.booted, s.boot, s.previous = l.Booted, cmp.Or(l.Boot, s.boot), cmp.Or(l.After, s.previous)
		end := i + 1
		for end < len(s.lines) && s.lines[end].Event == registry.Held && s.lines[end].Time.Equal(l.Time) {
			end++
		}
		if s.old || end-i-1 == l.Leases {
			s.snapshots = append(s.snapshots, wholeSnapshot{i, end})
		}
	}
	if !s.old {
		s.boot = cmp.Or(s.boot, s.name)
	}
}

// setClocks converts the times of all series of a boot to the clock of the boot's last series, so that the times can be
// compared. It returns the last series of each boot.
func (n *node) setClocks() map[string]*series {
	follows := func(s, l *series) bool {
		than := cmp.Compare(s.lastTime().Sub(s.booted), l.lastTime().Sub(l.booted))
		return than > 0 || than == 0 && strings.HasPrefix(s.previous, l.name+".")
	}
	last := map[string]*series{} // by boot
	for _, s := range n.series {
		if l := last[s.boot]; !s.booted.IsZero() && (l == nil || follows(s, l)) {
			last[s.boot] = s
		}
	}
	for _, s := range n.series {
		l := last[s.boot]
		if s.booted.IsZero() || l.booted.Sub(s.booted).Abs() <= maxBootDiff {
			continue
		}
		s.shiftTimes(l.booted.Sub(s.booted))
	}
	return last
}

// dropUnclear drops each series whose times cannot be compared with the times of other series. One reason is that no
// snapshot of the boot is left. The other reason is that a lost series of the same boot may have had another clock.
func (n *node) dropUnclear(clocks map[string]*series) {
	if len(n.series) == 0 {
		return
	}
	named, lost := map[string]*series{}, n.lost
	for _, s := range n.series {
		named[s.name] = s
		lost = lost || s.booted.IsZero()
	}
	followed := map[string]bool{}
	for _, s := range n.series {
		followed[s.previousName()] = true
	}
	latest := latestSeries(named, followed, clocks)
	lost = lost || latest != nil && latest.tornNumber > latest.lines[len(latest.lines)-1].Number
	n.series = slices.DeleteFunc(n.series, func(s *series) bool {
		last := clocks[s.boot]
		drop := !s.old && (last == nil || (lost || last != latest) && !followed[last.name])
		n.endLost = n.endLost || drop && (latest == nil || last == latest)
		return drop
	})
}

// previousName returns the name of the previous series, or "" if no snapshot names that series.
func (s *series) previousName() string {
	name, _, _ := strings.Cut(s.previous, ".")
	return name
}

// latestSeries returns the last series of the node, which no other series follows. If lines are lost, several series
// may have no following series. If latestSeries cannot find out which series is the last, it returns nil.
func latestSeries(named map[string]*series, followed map[string]bool, clocks map[string]*series) *series {
	ends := slices.Collect(maps.Values(clocks))
	ends = slices.DeleteFunc(ends, func(s *series) bool { return s.old || followed[s.name] })
	if len(ends) > 1 {
		// No known series follows the series in the slice "ends". Only one of these series is the last series. Drop a
		// series if the chain of its previous series leads back to the node's first series, which has no previous
		// series. Because the slice has several series, a lost series followed the dropped series.
		ends = slices.DeleteFunc(ends, func(s *series) bool {
			for range named {
				if before := named[s.previousName()]; before != nil {
					s = before
				}
			}
			return s.previous == ""
		})
	}
	if len(ends) != 1 {
		return nil
	}
	return ends[0]
}

func (s *series) shiftTimes(step time.Duration) {
	s.booted = s.booted.Add(step)
	for i := range s.lines {
		for _, t := range []*time.Time{&s.lines[i].Time, &s.lines[i].Since, &s.lines[i].Missing} {
			if !t.IsZero() {
				*t = t.Add(step)
			}
		}
	}
}

// indexLines finds the lines of each address, and the holes in the series.
func (s *series) indexLines() {
	for i, l := range s.lines {
		if l.Address.IsValid() {
			s.linesOf[l.Address] = append(s.linesOf[l.Address], i)
		}
		if i > 0 && s.lines[i-1].Number < numberBefore(l) {
			s.holes = append(s.holes, s.newHole(i, s.lines[i-1].Number, numberBefore(l), s.lines[i-1].Time))
		}
	}
	for _, a := range s.lostAddrs {
		if a.IsValid() && s.linesOf[a] == nil {
			s.linesOf[a] = []int{}
		}
	}
}

// newHole returns the hole before the line with the index "at". The lost lines have the numbers from after+1 to
// "until". The line before the hole has the time "from".
func (s *series) newHole(at, after, until int, from time.Time) hole {
	return hole{at: at, addr: s.lostAddr(after, until), from: from.Add(-maxLateness), to: s.lines[at].Time}
}

// lostAddr is about the lost lines with the numbers from after+1 to "until". If the fragments show the same address for
// all these lines, lostAddr returns this address. Otherwise, it returns the zero address.
func (s *series) lostAddr(after, until int) netip.Addr {
	a := s.lostAddrs[until]
	if until-after > len(s.lostAddrs) {
		return netip.Addr{}
	}
	for n := after + 1; n < until; n++ {
		if s.lostAddrs[n] != a {
			return netip.Addr{}
		}
	}
	return a
}

// addHoleBefore adds a hole to the beginning of s if lines may be lost between the series prev and s. The lines of an
// old series have no numbers, so nothing shows that lines are lost.
func (n *node) addHoleBefore(prev, s *series) {
	_, number, _ := strings.Cut(s.previous, ".")
	end, _ := strconv.Atoi(number)
	last := prev.lines[len(prev.lines)-1]
	follows := prev.maxTornNumber() <= last.Number && (s.previousName() == prev.name && end <= last.Number || s.old ||
		prev.old && s.previous == "")
	if follows && s.changesBefore() == 0 && s.opensWhole() && last.Event != registry.Off {
		return
	}
	s.holes = slices.Insert(s.holes, 0, hole{from: prev.lastTime().Add(-maxLateness), to: s.firstTime()})
}
