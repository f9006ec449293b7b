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

// A node has the lines of one node's lease logs, divided into series.
type node struct {
	instance string // "" if its lines do not name the instance
	series   []*series
	cut      bool     // the end of a file of the node is lost, with an unknown number of lines
	named    []string // names of the series that have fragments
	lost     bool     // a series in named is lost
}

// A series has the lines of one registry, in one boot of the machine, by one clock.
type series struct {
	name   string
	old    bool // its lines have no numbers
	boot   string
	booted time.Time // when the machine booted; zero: no snapshot is left
	after  string    // name and last number of the previous series
	lines  []registry.Line
	holes  []hole // in order
	about  map[netip.Addr][]int
	whole  []shot
	lost   map[int]netip.Addr // the addresses of damaged lines, by number

	number int // the highest number that damage shows, or 0; if old, at least the number of the last change
	shot   int // the index of its last snapshot
}

// A hole is a place where lines are lost: before the line with the index at.
type hole struct {
	at       int
	addr     netip.Addr // the address of the lost lines; zero: any address
	from, to time.Time  // to is zero: no line comes after it
}

// A shot is a whole snapshot: the log has a line for each of its leases.
type shot struct{ from, to int } // the indexes of its first line, and of the first line after it

// sameBoot is the greatest difference between two boot times that processes compute for the same boot.
const sameBoot = 2 * time.Second

// late is how much earlier a line can be than the line before it. A process first takes the time, and then waits for
// the registry's lock.
const late = time.Minute

func newSeries(name string) *series {
	return &series{name: name, about: map[netip.Addr][]int{}}
}

// changes reports whether the line begins or ends a lease. Only such a line has a number of its own.
func changes(l registry.Line) bool { return l.Event == registry.Begin || l.Event == registry.End }

// addOld adds a line of an earlier release, without a number. In such a log, a snapshot comes before the changes that
// it includes.
func (n *node) addOld(l registry.Line) {
	last := n.lastOld()
	boots := !l.Booted.IsZero() && last.booted.Sub(l.Booted).Abs() > sameBoot
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
	if changes(l) {
		last.number++
		for i := last.shot; i < len(last.lines) && !l.Time.After(last.lines[last.shot].Time) &&
			!changes(last.lines[i]); i++ {
			last.lines[i].Number = last.number
		}
	}
	if l.Event == registry.Snapshot {
		last.shot = len(last.lines)
	}
	if l.Number = last.number; l.Event != registry.Clock {
		last.lines = append(last.lines, l)
	}
}

// lastOld returns the last series of lines without numbers. If there is none, lastOld adds one.
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

// finish puts the lines in order, and finds the places where lines are lost.
func (n *node) finish() {
	n.series = slices.DeleteFunc(n.series, func(s *series) bool { return len(s.lines) == 0 })
	for _, s := range n.series {
		s.order()
		s.learn()
	}
	clocks := n.setClocks()
	slices.SortStableFunc(n.series, func(a, b *series) int { return a.first().Compare(b.first()) })
	n.dropUnclear(clocks)
	for i, s := range n.series {
		s.index()
		switch {
		case i > 0:
			n.join(n.series[i-1], s)
		case s.start() > 0 || s.after != "": // the log had earlier lines
			s.holes = slices.Insert(s.holes, 0, hole{to: s.first()})
		case !s.old: // the first leases are unknown until a line shows them
			s.holes = slices.Insert(s.holes, 0, hole{from: s.first(), to: s.first()})
		}
	}
	if len(n.series) == 0 {
		return
	}
	s := n.series[len(n.series)-1]
	end := hole{at: len(s.lines), from: s.last()}
	switch last := s.lines[len(s.lines)-1]; {
	case n.cut, last.Event == registry.Off:
		s.holes = append(s.holes, end)
	case s.torn() > last.Number:
		end.addr = s.lostAddr(last.Number, s.torn())
		s.holes = append(s.holes, end)
	}
}

// torn returns the highest number of a line that damage to the log shows, or 0. The damage is a fragment of a line, or
// damaged lines after the last line. In an old series, torn returns at least the number of the last change.
func (s *series) torn() int {
	return max(s.number, slices.Max(append(slices.Collect(maps.Keys(s.lost)), 0)))
}

// before returns the number that the line before l has at least, if no line is lost.
func before(l registry.Line) int {
	if changes(l) {
		return l.Number - 1
	}
	return l.Number
}

// start returns how many changes of the series come before the first line that is left.
func (s *series) start() int { return before(s.lines[0]) }

// opens reports whether the first snapshot of the series is whole. A whole snapshot shows all leases.
func (s *series) opens() bool {
	first := slices.IndexFunc(s.lines, func(l registry.Line) bool { return l.Event == registry.Snapshot })
	return s.old || first >= 0 && len(s.whole) > 0 && s.whole[0].from == first
}

// first and last are the times of the first line and of the last one.
func (s *series) first() time.Time { return s.lines[0].Time }
func (s *series) last() time.Time  { return s.lines[len(s.lines)-1].Time }

// place returns the place of a line among the lines with the same number: a snapshot comes after the change with its
// number. For other events, it returns -1.
func place(l registry.Line) int {
	return slices.Index([]string{registry.Begin, registry.End, registry.Snapshot, registry.Held, registry.Off}, l.Event)
}

// order sorts the lines. Two changes with the same number contradict each other, for example after a disk was restored.
// Neither of them counts.
func (s *series) order() {
	slices.SortStableFunc(s.lines, func(a, b registry.Line) int {
		if a.Number != b.Number || changes(a) || changes(b) {
			return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(place(a), place(b)))
		}
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(place(a), place(b)))
	})
	twice := map[int]int{}
	for _, l := range s.lines {
		if changes(l) {
			twice[l.Number]++
		}
	}
	if kept := slices.DeleteFunc(slices.Clone(s.lines), func(l registry.Line) bool {
		return changes(l) && twice[l.Number] > 1
	}); len(kept) > 0 {
		s.lines = kept
	}
}

// learn reads the snapshots of the series. A snapshot names the boot and the previous series. learn also finds the
// snapshots that are whole.
func (s *series) learn() {
	for i := 0; i < len(s.lines); i++ {
		l := s.lines[i]
		if l.Event != registry.Snapshot {
			continue
		}
		s.booted, s.boot, s.after = l.Booted, cmp.Or(l.Boot, s.boot), cmp.Or(l.After, s.after)
		end := i + 1
		for end < len(s.lines) && s.lines[end].Event == registry.Held && s.lines[end].Time.Equal(l.Time) {
			end++
		}
		if s.old || end-i-1 == l.Leases {
			s.whole = append(s.whole, shot{i, end})
		}
	}
	if !s.old {
		s.boot = cmp.Or(s.boot, s.name)
	}
}

// setClocks converts the times of all series of a boot to the last clock of this boot. It returns, by boot, the series
// that has the last clock.
func (n *node) setClocks() map[string]*series {
	follows := func(s, l *series) bool {
		than := cmp.Compare(s.last().Sub(s.booted), l.last().Sub(l.booted))
		return than > 0 || than == 0 && strings.HasPrefix(s.after, l.name+".")
	}
	last := map[string]*series{} // by boot
	for _, s := range n.series {
		if l := last[s.boot]; !s.booted.IsZero() && (l == nil || follows(s, l)) {
			last[s.boot] = s
		}
	}
	for _, s := range n.series {
		l := last[s.boot]
		if s.booted.IsZero() || l.booted.Sub(s.booted).Abs() <= sameBoot {
			continue
		}
		s.move(l.booted.Sub(s.booted))
	}
	return last
}

// dropUnclear drops the series whose clock is unknown. Either no snapshot of their boot is left, or a lost series of
// the same boot may have had another clock.
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
		followed[s.follows()] = true
	}
	latest := latest(named, followed, clocks)
	lost = lost || latest != nil && latest.number > latest.lines[len(latest.lines)-1].Number
	n.series = slices.DeleteFunc(n.series, func(s *series) bool {
		last := clocks[s.boot]
		drop := !s.old && (last == nil || (lost || last != latest) && !followed[last.name])
		n.cut = n.cut || drop && (latest == nil || last == latest)
		return drop
	})
}

// follows returns the name of the previous series, or "" if the series does not name it.
func (s *series) follows() string {
	name, _, _ := strings.Cut(s.after, ".")
	return name
}

// latest returns the last series of the node. If several boots have a last series that no other series follows, no
// reader can know the latest one. Then latest returns nil.
func latest(named map[string]*series, followed map[string]bool, clocks map[string]*series) *series {
	ends := slices.Collect(maps.Values(clocks))
	ends = slices.DeleteFunc(ends, func(s *series) bool { return s.old || followed[s.name] })
	if len(ends) > 1 { // a series after the node's first one is lost
		ends = slices.DeleteFunc(ends, func(s *series) bool {
			for range named {
				if before := named[s.follows()]; before != nil {
					s = before
				}
			}
			return s.after == ""
		})
	}
	if len(ends) != 1 {
		return nil
	}
	return ends[0]
}

func (s *series) move(step time.Duration) {
	s.booted = s.booted.Add(step)
	for i := range s.lines {
		for _, t := range []*time.Time{&s.lines[i].Time, &s.lines[i].Since, &s.lines[i].Missing} {
			if !t.IsZero() {
				*t = t.Add(step)
			}
		}
	}
}

// index finds the lines of each address, and the holes in the series.
func (s *series) index() {
	for i, l := range s.lines {
		if l.Address.IsValid() {
			s.about[l.Address] = append(s.about[l.Address], i)
		}
		if i > 0 && s.lines[i-1].Number < before(l) {
			s.holes = append(s.holes, s.hole(i, s.lines[i-1].Number, before(l), s.lines[i-1].Time))
		}
	}
	for _, a := range s.lost {
		if a.IsValid() && s.about[a] == nil {
			s.about[a] = []int{}
		}
	}
}

// hole returns the hole before the line with the index at. The lost lines have the numbers from after+1 to until.
func (s *series) hole(at, after, until int, from time.Time) hole {
	return hole{at: at, addr: s.lostAddr(after, until), from: from.Add(-late), to: s.lines[at].Time}
}

// lostAddr returns the address of the lost lines with the numbers from after+1 to until. If fragments do not show one
// address for all these lines, it returns the zero address.
func (s *series) lostAddr(after, until int) netip.Addr {
	a := s.lost[until]
	if until-after > len(s.lost) {
		return netip.Addr{}
	}
	for n := after + 1; n < until; n++ {
		if s.lost[n] != a {
			return netip.Addr{}
		}
	}
	return a
}

// join adds a hole to the beginning of s if lines may be lost between the series prev and s. Between lines without
// numbers, no reader can see a loss.
func (n *node) join(prev, s *series) {
	_, number, _ := strings.Cut(s.after, ".")
	end, _ := strconv.Atoi(number)
	last := prev.lines[len(prev.lines)-1]
	follows := prev.torn() <= last.Number && (s.follows() == prev.name && end <= last.Number || s.old ||
		prev.old && s.after == "")
	if follows && s.start() == 0 && s.opens() && last.Event != registry.Off {
		return
	}
	s.holes = slices.Insert(s.holes, 0, hole{from: prev.last().Add(-late), to: s.first()})
}
