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

// The times of a State are times of the wall clock, so that people can read them. But an operator or a program can set
// the wall clock, by seconds or days. If the clock was set back by a day, a time of the State may be in the future. A
// process could then wait for a day. If the clock was set forward, a wait that is needed for safety, such as the
// cooling of an address, could end too early.
//
// So a process that writes the registry's file computes the machine's boot time by the wall clock, and stores it in the
// file. A process that reads the file computes the boot time again. If the two boot times differ, the clock was set
// after the file was written. The process then moves all times of the State by the difference.
//
// A time may still be too far in the future: the file may have no boot time, or another program may have written the
// file. So each kind of time has a maximum, and a process replaces a later time by the maximum. For example, the
// maximum for NotBefore is the current time plus MostBackoff.
//
// No process moves the times in the lease log. Each snapshot in the log has a boot time. The boot time and the times of
// the lines after the snapshot are from the same setting of the clock. So a reader can see whether the clock was set
// between two snapshots.

// The maximum durations from now to the deadlines of a State. No process sets a later deadline.
const (
	MostBackoff = 8 * time.Second  // for NotBefore, if EC2 throttles the action
	MostQuota   = 3 * time.Minute  // for QuotaUntil
	MostFull    = 5 * time.Minute  // for FullUntil
	MostEmpty   = 30 * time.Second // for Failure.Until, if a subnet is full
	MostRefusal = 5 * time.Minute  // for Refusal.Until
	MostWait    = 90 * time.Second // for Waiter.Until: the longest addTimeout
)

// clockTolerance is the maximum change of the clock that this package ignores.
const clockTolerance = time.Second

// Uptime returns how long the machine has been running, by a clock that no process can set (clock_gettime(2),
// CLOCK_BOOTTIME). Tests replace Uptime.
var Uptime = func() time.Duration { return reading(unix.CLOCK_BOOTTIME) }

// suspended returns how long the machine has been suspended since its boot, for example by a hibernation. The clock of
// time.Since (CLOCK_MONOTONIC) does not count this time. Tests replace suspended.
var suspended = func() time.Duration { return reading(unix.CLOCK_BOOTTIME) - reading(unix.CLOCK_MONOTONIC) }

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

// nowAndBootTime returns the current time, and the machine's boot time. Both are times of the wall clock. If the kernel
// delayed the process between the readings of two clocks, nowAndBootTime reads both clocks again.
func nowAndBootTime() (now, booted time.Time) {
	const tries = 5
	for range tries {
		up := Uptime()
		now = time.Now().UTC().Round(0)
		booted = now.Add(-up)
		if Uptime()-up < clockTolerance/10 {
			break
		}
	}
	return now, booted
}

// blankState returns the state of a registry that has no file.
func blankState() *State {
	s := newState()
	_, s.bootTime = nowAndBootTime()
	return s
}

// BegunAfter reports whether the lease l began after t, which must be a result of time.Now in this process. If t is
// zero, BegunAfter returns false. It also returns false if l.Since was in the future when this process read the
// registry. The true beginning of such a lease is not known.
func (s *State) BegunAfter(l Lease, t time.Time) bool { return s.isAfter(l.Since, t) }

// MaybeBegunAfter reports whether the lease l may have begun after t, which must be a result of time.Now in this
// process. Unlike BegunAfter, it returns true if l.Since was in the future when this process read the registry. In this
// case, the clock was perhaps set back by less than clockTolerance.
func (s *State) MaybeBegunAfter(l Lease, t time.Time) bool { return l.Since.After(ToCurrentClock(t)) }

// FreedAfter reports whether the last lease of a free address ended after the time t. The time t must be a result of
// time.Now in this process.
func (s *State) FreedAfter(a netip.Addr, t time.Time) bool {
	since, free := s.Free.At(a)
	return free && s.isAfter(since, t)
}

func (s *State) isAfter(since, t time.Time) bool {
	return !t.IsZero() && since.After(ToCurrentClock(t)) && since.Before(s.readAt)
}

// ToCurrentClock converts t, which must be a result of time.Now in this process, to the current wall clock. If the
// clock was set after t, ToCurrentClock moves t by the difference, as setClock has done with the times of a State.
// Callers compare the result with these times.
//
// If the machine was suspended between the start of the process and t, the result is too early by the duration of the
// suspension. This is safe: the process then only fails to end a lease, or concludes less from an answer of EC2.
func ToCurrentClock(t time.Time) time.Time {
	now := time.Now()
	// how far the wall clock was set forward since t: it then counts more time than the monotonic clock
	step := now.Round(0).Sub(t.Round(0)) - now.Sub(t)
	if step.Abs() < clockTolerance {
		return t
	}
	return t.Round(0).Add(step - (suspended() - suspendedAtStart))
}

// setClock corrects the times of the state, as the top of this file describes. The arguments are the current time and
// the boot time, both by the current wall clock.
func (s *State) setClock(now, booted time.Time) {
	s.readAt = now
	step := booted.Sub(s.bootTime)
	same := step.Abs() < clockTolerance
	if same && s.isOurs {
		return
	}
	if same || s.bootTime.IsZero() {
		step = 0
	}
	s.clockSet = step != 0
	s.replaceTimes(func(t time.Time, maxAhead time.Duration) time.Time {
		moved, latest := t.Add(step), now.Add(maxAhead)
		if moved.After(latest) || moved.Year() < 1 {
			return latest
		}
		return moved
	})
	s.bootTime = booted
}

// replaceTimes replaces each nonzero time t of the state with the result of f. The argument maxAhead of f is the
// maximum duration from now to t.
func (s *State) replaceTimes(f func(t time.Time, maxAhead time.Duration) time.Time) {
	until := func(t time.Time, maxAhead time.Duration) time.Time {
		if t.IsZero() {
			return t
		}
		return f(t, maxAhead)
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
