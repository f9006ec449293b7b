// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A node writes its lines in the order of the changes. A shipper may have sent them in another one. A clock that is set shows in the
// lines. In between, the times of the lines are in order.

// slack is by how much a line may be older than the one before it, as a node has written them.
const slack = 10 * time.Second

// inTurn puts the lines of a node in the order in which the node has written them. sure is false if nobody can know that
// order: the clock was set, and the lines are not as they were written.
func inTurn(lines []registry.Line) (sure bool) {
	all := stretches(lines)
	if sure = !slices.ContainsFunc(all, disordered); !sure {
		all = [][]registry.Line{lines}
		sure = !slices.ContainsFunc(lines, func(l registry.Line) bool { return l.Event == registry.Clock })
	}
	for _, s := range all {
		arrange(s)
	}
	return sure
}

// stretches are the lines that are by one clock: they share the memory of the lines.
func stretches(lines []registry.Line) (all [][]registry.Line) {
	from := 0
	for i, l := range lines {
		if l.Event == registry.Clock && i > 0 {
			all = append(all, lines[from:i])
			from = i
		}
	}
	return append(all, lines[from:])
}

// boots reports whether a snapshot is of another boot than one with this time.
func boots(snapshot registry.Line, booted time.Time) bool {
	return snapshot.Booted.Sub(booted).Abs() > sameBoot
}

// disordered reports whether a line is much older than one before it. The first line may be that of a clock that was set. Older lines
// of the same change follow it.
func disordered(stretch []registry.Line) bool {
	var latest time.Time
	for i, l := range stretch {
		if i == 0 && l.Event == registry.Clock {
			continue
		}
		if l.Time.Before(latest.Add(-slack)) {
			return true
		}
		if l.Time.After(latest) {
			latest = l.Time
		}
	}
	return false
}

// A floor is the first line of a boot, or of another clock. The change that has written it has written other lines behind it, whose
// times are a little earlier. Those from a time on count as if they had the time of the floor.
type floor struct{ from, to time.Time }

// floors are those of lines of one clock.
func floors(lines []registry.Line) (all []floor) {
	if lines[0].Event == registry.Clock {
		all = append(all, floor{time.Time{}, lines[0].Time})
	}
	var snapshots []registry.Line
	for _, l := range lines {
		if l.Event == registry.Snapshot {
			snapshots = append(snapshots, l)
		}
	}
	slices.SortStableFunc(snapshots, func(a, b registry.Line) int { return a.Time.Compare(b.Time) })
	var booted time.Time
	for _, l := range snapshots {
		if boots(l, booted) {
			all = append(all, floor{l.Booted, l.Time})
		}
		booted = l.Booted
	}
	return all
}

// arrange sorts lines of one clock. The leases of a snapshot follow it at once. An address that is leased again in one change
// first loses the old lease.
func arrange(lines []registry.Line) {
	if len(lines) == 0 {
		return
	}
	all := floors(lines)
	counts := func(l registry.Line) time.Time {
		for _, f := range all {
			if l.Time.Before(f.to) && !l.Time.Before(f.from) {
				return f.to
			}
		}
		return l.Time
	}
	slices.SortStableFunc(lines, func(a, b registry.Line) int {
		return cmp.Or(counts(a).Compare(counts(b)), cmp.Compare(min(rank(a), change), min(rank(b), change)), a.Time.Compare(b.Time), cmp.Compare(rank(a), rank(b)))
	})
}

// change is the least rank of a line that is a change, and neither of a snapshot nor of a clock.
const change = 3

// rank is the place of a line among those of one time.
func rank(l registry.Line) int {
	return slices.Index([]string{registry.Clock, registry.Snapshot, registry.Held, registry.End, registry.Begin, registry.Off}, l.Event)
}
