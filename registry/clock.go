// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The times of a State are by the wall clock, so that people can read them. An operator or a program may set that
// clock, by seconds or by days. For example, NTP sets it on a machine that boots with a wrong clock. Then a time of the
// State may be in the future, and could stop the node for a day. Another time may seem older than it is, and could end
// a wait that is needed for safety.
//
// So the file also has the boot time of the machine, by the same clock as the other times in the file. If the boot time
// by the current clock differs, an operator or a program has set the clock in between. Then the process that reads the
// file moves all times by the difference.
//
// The file may have no boot time, or a person or another program may have written the file. Then the process cuts each
// time that is later than the latest possible time: it replaces such a time by the latest possible time. So a wait can
// only become longer.
//
// The process does not move the times in the lease log: a snapshot says by which clock the lines after the snapshot
// are.

// The longest times from now to the deadlines of a State. No process sets a later deadline.
const (
	MostBackoff = 8 * time.Second  // of NotBefore, for an action that EC2 throttles
	MostQuota   = 3 * time.Minute  // of QuotaUntil
	MostFull    = 5 * time.Minute  // of FullUntil
	MostEmpty   = 30 * time.Second // of a Failure, if a subnet is full
	MostRefusal = 5 * time.Minute  // of a Refusal
	MostWait    = 90 * time.Second // of a Waiter: the longest addTimeout
)

// tolerance is the largest change of the clock that is ignored.
const tolerance = time.Second

// Uptime returns how long the machine has been running, by a clock that no process can set (clock_gettime(2),
// CLOCK_BOOTTIME). Tests in a synctest bubble replace Uptime, because the bubble has its own time.
var Uptime = func() time.Duration { return reading(unix.CLOCK_BOOTTIME) }

// suspended returns how long the machine has been suspended since its boot, for example by a hibernation. The clock of
// time.Since (CLOCK_MONOTONIC) does not count this time. Tests replace suspended.
var suspended = func() time.Duration { return reading(unix.CLOCK_BOOTTIME) - reading(unix.CLOCK_MONOTONIC) }

// suspendedAtStart is the value of suspended at the start of this process.
var suspendedAtStart = suspended()

func reading(clock int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		panic(err) // every Linux since 2.6.39 has the clocks that this package reads
	}
	return time.Duration(t.Nano())
}

// BootID identifies the boot of this machine. If the kernel does not show the ID, BootID returns "". Tests replace
// BootID.
var BootID = func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// clocks returns the time, and the boot time by the same clock. It reads both again if this process was delayed between
// the two reads.
func clocks() (now, booted time.Time) {
	const tries = 5
	for range tries {
		up := Uptime()
		now = time.Now().UTC().Round(0)
		booted = now.Add(-up)
		if Uptime()-up < tolerance/10 {
			break
		}
	}
	return now, booted
}

// blank is the state of a registry that has no file.
func blank() *State {
	s := newState()
	_, s.booted = clocks()
	return s
}

// BegunAfter reports whether a lease began after the time t, which this process got from time.Now. If t is zero,
// BegunAfter returns false. It also returns false if the lease's time was cut, because then no process knows when the
// lease began.
func (s *State) BegunAfter(l Lease, t time.Time) bool { return s.after(l.Since, t) }

// FreedAfter reports whether the last lease of a free address ended after the time t.
func (s *State) FreedAfter(a netip.Addr, t time.Time) bool {
	since, free := s.Free.At(a)
	return free && s.after(since, t)
}

func (s *State) after(since, t time.Time) bool {
	return !t.IsZero() && since.After(adjusted(t)) && since.Before(s.read)
}

// adjusted converts a time of this process to the current clock, because the times of a State are by this clock. If the
// machine was suspended between the start of the process and the time, the result is too early by the duration of the
// suspension. Then a lease may count as later, and does not end.
func adjusted(t time.Time) time.Time {
	now := time.Now()
	step := now.Round(0).Sub(t.Round(0)) - now.Sub(t) // elapsed by the wall clock, minus by the monotonic clock
	if step.Abs() < tolerance {
		return t
	}
	return t.Round(0).Add(step - (suspended() - suspendedAtStart))
}

// setClock moves the times of a state from the clock of the file to the current clock.
func (s *State) setClock(now, booted time.Time) {
	s.read = now
	step := booted.Sub(s.booted)
	same := step.Abs() < tolerance
	if same && s.ours {
		return
	}
	if same || s.booted.IsZero() {
		step = 0
	}
	s.stepped = step != 0
	s.eachTime(func(t time.Time, ahead time.Duration) time.Time {
		moved, latest := t.Add(step), now.Add(ahead)
		if moved.After(latest) || moved.Year() < 1 {
			return latest
		}
		return moved
	})
	s.booted = booted
}

// eachTime replaces each time of the state that is not zero with the result of f. The
// argument ahead is how far in the future such a time can be.
func (s *State) eachTime(f func(t time.Time, ahead time.Duration) time.Time) {
	until := func(t time.Time, ahead time.Duration) time.Time {
		if t.IsZero() {
			return t
		}
		return f(t, ahead)
	}
	since := func(t time.Time) time.Time { return until(t, 0) }
	for a, t := range s.Free.All() {
		s.Free.Set(a, since(t))
	}
	for a, l := range s.Leases.All() {
		l.Since, l.MissingSince = since(l.Since), since(l.MissingSince)
		s.Leases.Set(a, l)
	}
	for id, e := range s.ENIs {
		e.Read, e.Grown, e.Missed, e.Detaching = since(e.Read), since(e.Grown), since(e.Missed), since(e.Detaching)
		for i := range e.Prefixes {
			e.Prefixes[i].Since = since(e.Prefixes[i].Since)
		}
		s.ENIs[id] = e
	}
	for id, v := range s.VPCs {
		v.PeersRead = since(v.PeersRead)
		s.VPCs[id] = v
	}
	for token, i := range s.Intents {
		i.Since = since(i.Since)
		s.Intents[token] = i
	}
	for key, w := range s.Waiters {
		w.Since, w.Until = since(w.Since), until(w.Until, MostWait)
		s.Waiters[key] = w
	}
	for key, w := range s.GaveUp {
		w.Since, w.Until = since(w.Since), since(w.Until)
		s.GaveUp[key] = w
	}
	for key, failure := range s.Failures {
		failure.Since, failure.Began, failure.Until = since(failure.Since), since(failure.Began), until(
			failure.Until, MostEmpty)
		s.Failures[key] = failure
	}
	for a, t := range s.Gone {
		s.Gone[a] = since(t)
	}
	for action, t := range s.NotBefore {
		s.NotBefore[action] = until(t, MostBackoff)
	}
	for key, r := range s.Refusals {
		r.Since, r.Until = since(r.Since), until(r.Until, MostRefusal)
		s.Refusals[key] = r
	}
	s.Rebuilt.Since = since(s.Rebuilt.Since)
	s.Instance.QuotaUntil = until(s.Instance.QuotaUntil, MostQuota)
	s.Instance.FullUntil, s.Instance.FullRead = until(s.Instance.FullUntil, MostFull), since(s.Instance.FullRead)
}
