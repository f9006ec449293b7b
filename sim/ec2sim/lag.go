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

// A Lag says how old the state in EC2's answers can be: "the result of an API command you run ... might not be
// immediately visible to all subsequent commands" (API: "Eventual consistency in the Amazon EC2 API"). With the zero
// Lag, EC2 always shows the present state. Seed makes the answers repeatable: with the same Seed, the same calls at the
// same times get the same answers.
//
//   - About half of the answers show the present state. The other answers can show an old state. The age of an old
//     state is at most [Lag.Most]. Only three parts of answers can be old: the ENIs of DescribeNetworkInterfaces, the
//     states of DescribeInstances, and the free addresses of DescribeSubnets.
//   - At most [Lag.Back] answers show a state that is older than the state in the previous answer. In
//     kubernetes/kubernetes#77389, EC2 showed a volume as detached, and later as detaching.
//   - An action that names an ENI younger than [Lag.Most] can fail with InvalidNetworkInterfaceID.NotFound ("its ID
//     might not have propagated throughout the system, and you will get an error responding that the resource does not
//     exist"). A Describe action may already show such an ENI.
//
// A call always changes the present state. When RunInstance returns, all actions find the instance.
type Lag struct {
	Most time.Duration
	Back int
	Seed uint64
}

// lagging is the state of a Lag.
type lagging struct {
	Lag
	rand    *rand.Rand
	past    []moment // the oldest first; past[0] is the oldest state that an answer may show
	dropped int      // how many moments were older than past[0], and are no longer in past
	shown   int      // the number of the latest moment that an answer has shown; the first moment has the number 0
}

// A moment is a state of EC2 that Describe actions can show. The field "since" is the time when the state began.
type moment struct {
	since  time.Time
	enis   map[string]*eni   // if there is a lag, these are copies that never change
	free   map[string]int    // by subnet
	states map[string]string // by instance
}

func newLagging(l Lag) *lagging {
	if l.Most <= 0 {
		return nil
	}
	return &lagging{Lag: l, rand: rand.New(rand.NewPCG(l.Seed, 0))}
}

// currentMoment returns the present moment.
func (s *Sim) currentMoment() moment {
	m := moment{since: time.Now(), enis: s.enis, free: map[string]int{}, states: map[string]string{}}
	for id, sub := range s.subnets {
		m.free[id] = sub.freeIPv4()
	}
	for id, i := range s.instances {
		m.states[id] = i.state()
	}
	return m
}

// saveMoment saves the present moment for later answers, if there is a lag and the state has changed.
func (s *Sim) saveMoment() {
	if s.lag == nil {
		return
	}
	m := s.currentMoment()
	m.enis = map[string]*eni{}
	for id, e := range s.enis {
		m.enis[id] = e.clone()
	}
	if n := len(s.lag.past); n > 0 && reflect.DeepEqual(s.lag.past[n-1].enis, m.enis) &&
		maps.Equal(s.lag.past[n-1].states, m.states) {
		return // the free addresses of a subnet change only together with an ENI
	}
	s.lag.past = append(s.lag.past, m)
	s.lag.dropOld(m.since)
}

// clone returns a copy of the ENI. Later changes of the ENI do not change the copy.
func (e *eni) clone() *eni {
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

func (l *lagging) dropOld(now time.Time) {
	oldest := now.Add(-l.Most)
	for len(l.past) > 1 && !l.past[1].since.After(oldest) {
		l.past, l.dropped = l.past[1:], l.dropped+1
	}
}

// shownMoment returns the moment that a Describe action shows now.
func (s *Sim) shownMoment() moment {
	if s.lag == nil {
		return s.currentMoment()
	}
	l, now := s.lag, time.Now()
	l.dropOld(now)
	latest := max(0, l.shown-l.dropped)
	if latest > 0 && l.Back > 0 && l.rand.IntN(2) == 0 {
		l.Back--
		return l.past[l.rand.IntN(latest)]
	}
	for at := now.Add(-l.randomDelay()); latest+1 < len(l.past) && !l.past[latest+1].since.After(at); {
		latest++
	}
	l.shown = l.dropped + latest
	return l.past[latest]
}

// randomDelay returns 0 in half of the cases, and otherwise a random delay of at most [Lag.Most].
func (l *lagging) randomDelay() time.Duration {
	if l.rand.IntN(2) == 0 {
		return 0
	}
	return time.Duration(l.rand.Int64N(int64(l.Most) + 1))
}

// findableFrom returns the time from which actions find an ENI that EC2 creates now.
func (s *Sim) findableFrom() time.Time {
	if s.lag == nil {
		return time.Time{}
	}
	return time.Now().Add(s.lag.randomDelay())
}

func (s *Sim) dropPast() {
	if s.lag != nil {
		s.lag.dropped += len(s.lag.past)
		s.lag.past = nil
		s.saveMoment()
	}
}
