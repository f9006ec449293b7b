// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"
)

// A Lag is how far EC2 is behind itself: "the result of an API command you run ... might not be immediately visible to
// all subsequent commands" (API: "Eventual consistency in the Amazon EC2 API"). The zero value is an EC2 that is never
// behind. With the same Seed, the same calls at the same times have the same answers.
//
//   - DescribeNetworkInterfaces and the free addresses of DescribeSubnets show what was true at some moment of the time
//     Most until now, and half of the time that is now: they can miss an ENI or an address that is new, and show what is
//     gone.
//   - What a describe shows is never older than what one before it has shown, but for so many times as Back says: then it
//     goes back within that time. In practice EC2 does: kubernetes/kubernetes#77389 saw a volume detached, and after
//     that detaching.
//   - An action that names an ENI may not find it for some part of Most after its creation, and answers
//     InvalidNetworkInterfaceID.NotFound ("its ID might not have propagated throughout the system, and you will get an
//     error responding that the resource does not exist"). A describe may show it earlier, or later.
//
// What an action changes is never based on an old view. RunInstance returns when everybody has heard of the instance.
type Lag struct {
	Most time.Duration
	Back int
	Seed uint64
}

// lagging is a Lag at work.
type lagging struct {
	Lag
	rand  *rand.Rand
	past  []moment // in order; the first is the last one that is as old as Most, or older
	first int      // how many there were before the first
	shown int      // the latest one that was shown, counted from the beginning
}

// A moment is what describes can see, and from when on.
type moment struct {
	since time.Time
	enis  map[string]*eni // with a lag, copies that nobody changes
	free  map[string]int  // by subnet
}

func newLagging(l Lag) *lagging {
	if l.Most <= 0 {
		return nil
	}
	return &lagging{Lag: l, rand: rand.New(rand.NewPCG(l.Seed, 0))}
}

// now is the present moment.
func (s *Sim) now() moment {
	m := moment{since: time.Now(), enis: s.enis, free: map[string]int{}}
	for id, sub := range s.subnets {
		m.free[id] = sub.free()
	}
	return m
}

// keep keeps the present moment for describes to come, if there is a lag and the moment is another than the last.
func (s *Sim) keep() {
	if s.lag == nil {
		return
	}
	m := s.now()
	m.enis = map[string]*eni{}
	for id, e := range s.enis {
		m.enis[id] = e.copy()
	}
	if n := len(s.lag.past); n > 0 && reflect.DeepEqual(s.lag.past[n-1].enis, m.enis) {
		return // and so the same addresses are free
	}
	s.lag.past = append(s.lag.past, m)
	s.lag.forget(m.since)
}

// copy is e as it is, for ever.
func (e *eni) copy() *eni {
	c := *e
	c.groups, c.tags = slices.Clone(e.groups), maps.Clone(e.tags)
	for _, h := range []*holding{&c.v4, &c.v6} {
		h.addrs, h.prefixes = slices.Clone(h.addrs), slices.Clone(h.prefixes)
	}
	if e.attachment != nil {
		c.attachment = new(*e.attachment)
	}
	return &c
}

// forget drops the moments that are too old to be shown.
func (l *lagging) forget(now time.Time) {
	oldest := now.Add(-l.Most)
	for len(l.past) > 1 && !l.past[1].since.After(oldest) {
		l.past, l.first = l.past[1:], l.first+1
	}
}

// seen is the moment that a describe shows.
func (s *Sim) seen() moment {
	if s.lag == nil {
		return s.now()
	}
	l, now := s.lag, time.Now()
	l.forget(now)
	latest := max(0, l.shown-l.first)
	if latest > 0 && l.Back > 0 && l.rand.IntN(2) == 0 {
		l.Back--
		return l.past[l.rand.IntN(latest)]
	}
	for at := now.Add(-l.some()); latest+1 < len(l.past) && !l.past[latest+1].since.After(at); {
		latest++
	}
	l.shown = l.first + latest
	return l.past[latest]
}

// some is how far something is behind: half of the time not at all, else up to Most.
func (l *lagging) some() time.Duration {
	if l.rand.IntN(2) == 0 {
		return 0
	}
	return time.Duration(l.rand.Int64N(int64(l.Most) + 1))
}

// propagated is when an ENI that is created now will be known to all actions.
func (s *Sim) propagated() time.Time {
	if s.lag == nil {
		return time.Time{}
	}
	return time.Now().Add(s.lag.some())
}

// catchUp makes the present moment the only one.
func (s *Sim) catchUp() {
	if s.lag != nil {
		s.lag.first += len(s.lag.past)
		s.lag.past = nil
		s.keep()
	}
}
