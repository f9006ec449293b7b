// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package page

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// The kinds of events.
const (
	began   = "begin"
	ended   = "end"
	refused = "refused"
)

type event struct {
	at     time.Time
	Kind   string // begin, end or refused
	Letter string
	Time   string
	What   string
}

// A timeline has a picture of the events, and a list of the events. The list begins with the latest event.
type timeline struct {
	Events   []event
	More     int // number of earlier events
	Why      string
	From, To string
	Curve    string // the number of leases over time, as points of SVG
	Most     int    // the largest number of leases
	Marks    []mark
	Ticks    []tick
}

// A mark stands for the events of one kind at one place of the picture.
type mark struct {
	Kind  string
	X     int
	Count int
}

type tick struct {
	X    int
	Text string
}

// mostEvents is the maximum number of events that the page lists.
const mostEvents = 300

// The size of the picture, in units of the viewBox of the SVG.
const (
	width, height = 1000, 120
)

func timelineOf(b *bundle.Bundle) (t timeline) {
	if s := b.Source("lease log"); s.State != bundle.Whole {
		t.Why = s.Why
	}
	all := slices.Concat(leaseEvents(b.Log), registryEvents(b.State), journalEvents(b.Journal))
	slices.SortStableFunc(all, func(a, b event) int { return a.at.Compare(b.at) })
	t.drawPicture(b, all)
	slices.Reverse(all)
	if t.More = len(all) - mostEvents; t.More > 0 {
		all = all[:mostEvents]
	}
	t.Events = all
	return t
}

func leaseEvents(log []registry.Line) (all []event) {
	type number struct {
		series string
		n      int
	}
	seen := map[number]bool{}
	for _, l := range log {
		if l.Event != registry.Begin && l.Event != registry.End {
			continue
		}
		if is := (number{l.Series, l.Number}); l.Series != "" && seen[is] {
			continue // the log has this line twice
		} else {
			seen[is] = true
		}
		who := cmp.Or(l.Container, l.NetNS, "an unknown pod")
		if l.Pod != "" {
			who = l.Namespace + "/" + l.Pod
		}
		e := event{l.Time, began, "B", timeText(l.Time), fmt.Sprintf("%s gets %s (%s)", who, l.Address, l.ENI)}
		if l.Event == registry.End {
			e.Kind, e.Letter, e.What = ended, "E", fmt.Sprintf("%s no longer has %s", who, l.Address)
		}
		all = append(all, e)
	}
	return all
}

// registryEvents returns the events that the registry has: refusals by EC2, throttling by EC2, and failures of ADDs.
func registryEvents(s *registry.State) (all []event) {
	if s == nil {
		return nil
	}
	add := func(at time.Time, what string) {
		if !at.IsZero() {
			all = append(all, event{at, refused, "X", timeText(at), what})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.Refusals)) {
		r := s.Refusals[key]
		add(r.Since, fmt.Sprintf("EC2 refuses %s: %s %s", key, r.Code, r.Message))
	}
	for _, concern := range slices.Sorted(maps.Keys(s.Failures)) {
		f := s.Failures[concern]
		network, pool, _ := strings.Cut(concern, "/")
		add(f.Since, fmt.Sprintf("an ADD of the network %s, pool %s, fails: %s", network, conf.PoolName(pool), f.Text))
	}
	for _, action := range slices.Sorted(maps.Keys(s.NotBefore)) {
		add(s.NotBefore[action], "EC2 throttles "+action+", so this node does not repeat this call before this time")
	}
	return all
}

// journalEvents returns the journal's warnings about EC2. Some of them are about old refusals, which the registry no
// longer has.
func journalEvents(journal []bundle.Entry) (all []event) {
	const warning = "4" // the level of a warning in syslog
	for _, e := range journal {
		if e.Level <= warning && strings.Contains(e.Text, "EC2") {
			all = append(all, event{e.Time, refused, "X", timeText(e.Time), e.Text})
		}
	}
	return all
}

// drawPicture makes the picture: the number of leases over time, and marks for the events.
func (t *timeline) drawPicture(b *bundle.Bundle, all []event) {
	if len(all) < 2 {
		return
	}
	from, to := all[0].at, all[len(all)-1].at
	if b.Made.After(to) {
		to = b.Made
	}
	whole := to.Sub(from)
	if whole <= 0 {
		return
	}
	x := func(at time.Time) int {
		return int(int64(width) * int64(at.Sub(from)/1000) / max(1, int64(whole/1000)))
	}
	counts := leaseCounts(b, all)
	t.Most = max(1, slices.Max(counts))
	y := func(n int) int { return height - (height-8)*n/t.Most }
	var curve strings.Builder
	fmt.Fprintf(&curve, "0,%d", height)
	last := counts[0]
	for i, e := range all {
		fmt.Fprintf(&curve, " %d,%d %d,%d", x(e.at), y(last), x(e.at), y(counts[i]))
		last = counts[i]
	}
	fmt.Fprintf(&curve, " %d,%d %d,%d", width, y(last), width, height)
	t.Curve, t.From, t.To = curve.String(), timeText(from), timeText(to)
	t.addMarks(all, x)
	const parts = 5
	for i := range parts + 1 {
		at := from.Add(whole * time.Duration(i) / parts)
		layout := "15:04:05"
		if whole > 20*time.Hour {
			layout = "Jan 2 15:04"
		}
		t.Ticks = append(t.Ticks, tick{width * i / parts, at.UTC().Format(layout)})
	}
}

// leaseCounts returns the number of leases after each event. The log may lack its first lines, so leaseCounts begins
// with the leases in the registry, and counts back from the last event.
func leaseCounts(b *bundle.Bundle, all []event) []int {
	n := 0
	if b.State != nil {
		addrs := map[netip.Addr]bool{}
		for a := range b.State.Leases.Keys() {
			addrs[a] = true
		}
		n = len(addrs)
	}
	counts := make([]int, len(all))
	for i, e := range slices.Backward(all) {
		counts[i] = max(0, n)
		switch e.Kind {
		case began:
			n--
		case ended:
			n++
		}
	}
	return counts
}

// addMarks makes one mark for all events of a kind at the same place.
func (t *timeline) addMarks(all []event, x func(time.Time) int) {
	const grid = 5
	at := map[mark]int{}
	for _, e := range all {
		at[mark{Kind: e.Kind, X: min(x(e.at), width) / grid * grid}]++
	}
	for m, n := range at {
		m.Count = n
		t.Marks = append(t.Marks, m)
	}
	slices.SortFunc(t.Marks, func(a, b mark) int { return cmp.Or(cmp.Compare(a.X, b.X), cmp.Compare(a.Kind, b.Kind)) })
}
