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
// State may be in the future, and a wait until that time could stop the node for a day. Or a time may seem older than
// it is, and a wait that is needed for safety could end too early.
//
// So the registry's file also has the boot time of the machine, by the same clock as the other times in the file. A
// process that reads the file computes the boot time again, by the current clock. If the two boot times differ, an
// operator or a program has set the clock in between. Then the process moves all times by the difference.
//
// The file may have no boot time, or a person or another program may have written the file. Then a time in the file may
// be later than the latest possible time. The process replaces such a time by the latest possible time. So no wait
// lasts longer from now than its maximum.
//
// The process does not move the times in the lease log. There, each snapshot names the clock of the lines after the
// snapshot.

// The longest times from now to the deadlines of a State. No process sets a later deadline.
const (
	MostBackoff = 8 * time.Second  // of NotBefore: EC2 throttles the action
	MostQuota   = 3 * time.Minute  // of QuotaUntil
	MostFull    = 5 * time.Minute  // of FullUntil
	MostEmpty   = 30 * time.Second // of a Failure: a subnet is full
	MostRefusal = 5 * time.Minute  // of a Refusal
	MostWait    = 90 * time.Second // of a Waiter: the longest addTimeout
)

// clockTolerance is the largest change of the clock that is ignored.
const clockTolerance = time.Second

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

// nowAndBootTime returns the time, and the boot time by the same clock. If the process was delayed between the reads of
// the two clocks, nowAndBootTime reads the clocks again.
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

// blankState is the state of a registry that has no file.
func blankState() *State {
	s := newState()
	_, s.bootTime = nowAndBootTime()
	return s
}

// BegunAfter reports whether a lease began after the time t, which this process got from time.Now. If t is zero,
// BegunAfter returns false. BegunAfter also returns false if l.Since was in the future, because then no process knows
// when the lease began.
func (s *State) BegunAfter(l Lease, t time.Time) bool { return s.isAfter(l.Since, t) }

// FreedAfter reports whether the last lease of a free address ended after the time t.
func (s *State) FreedAfter(a netip.Addr, t time.Time) bool {
	since, free := s.Free.At(a)
	return free && s.isAfter(since, t)
}

func (s *State) isAfter(since, t time.Time) bool {
	return !t.IsZero() && since.After(toCurrentClock(t)) && since.Before(s.readAt)
}

// toCurrentClock converts a time t, which this process got from time.Now, to the current wall clock. The times of a
// State are by that clock. If the machine was suspended between the start of the process and t, the result is too early
// by the duration of the suspension. Then a lease may count as later, and does not end.
func toCurrentClock(t time.Time) time.Time {
	now := time.Now()
	// time since t by the wall clock, minus time since t by the monotonic clock
	step := now.Round(0).Sub(t.Round(0)) - now.Sub(t)
	if step.Abs() < clockTolerance {
		return t
	}
	return t.Round(0).Add(step - (suspended() - suspendedAtStart))
}

// setClock converts the times of a state from the clock of the file to the current clock. The results have this clock's
// time now and boot time booted.
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

// replaceTimes replaces each nonzero time t of the state with f(t, maxAhead). A valid time t is at most maxAhead in the
// future.
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
