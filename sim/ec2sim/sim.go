// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// A Sim is a running simulator of one region of EC2 with one account. It is an http.Handler, safe for concurrent use.
type Sim struct {
	cfg     Config // complete, never changed
	vpcs    map[string]*VPC
	types   map[string]InstanceType
	maxIPv4 int // the largest IPv4PerENI of all types
	maxIPv6 int

	mu         sync.Mutex // guards all fields below
	subnets    map[string]*subnet
	enis       map[string]*eni
	instances  map[string]*Instance
	tokens     map[string]created
	counts     map[string]int            // the last number that nextNumber has returned for each kind
	keys       map[string]*keyPair       // by name
	madeGroups map[string]*securityGroup // by ID
	faults     map[string]*fault
	objects    map[string]*refusal // by action and object
	delays     map[string]time.Duration
	losses     map[string]int       // for each action, how many answers EC2 loses; negative: all
	scripts    map[string][]Outcome // for each action, the outcomes of its next requests
	buckets    map[string]*bucket
	lag        *lagging // nil if there is no lag
	clock      clock
	calls      []Call
	listeners  []func(Change)
	changes    []Change // queued for the listeners

	delivery sync.Mutex // held while a listener runs, so that changes arrive in order
}

// ENIs returns all network interfaces in the order of their creation, which is also the order of their IDs.
func (s *Sim) ENIs() []ENI {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []ENI
	for _, id := range slices.Sorted(maps.Keys(s.enis)) {
		all = append(all, s.enis[id].snapshot())
	}
	return all
}

// Instances returns all instances except the terminated instances, in the order of their launch, which is also the
// order of their IDs.
func (s *Sim) Instances() []*Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	var running []*Instance
	for _, id := range slices.Sorted(maps.Keys(s.instances)) {
		if i := s.instances[id]; !i.terminated {
			running = append(running, i)
		}
	}
	return running
}

// OnChange makes the simulator call f for each later change, one at a time and in order. EC2 answers a call only after
// f has returned. The simulator does not hold its lock while f runs, so f may read the state. f must make no call that
// changes something: this call would wait for f.
func (s *Sim) OnChange(f func(Change)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, f)
}

// update runs f, which can change the state, and then calls the listeners.
func (s *Sim) update(f func()) {
	if s.runLocked(f) {
		s.deliverChanges()
	}
}

// runLocked runs f with the lock held, and reports whether f queued a change.
func (s *Sim) runLocked(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock() // even if f panics: net/http then serves the next request, which needs the lock
	queued := len(s.changes)
	f()
	s.saveMoment()
	return len(s.changes) > queued
}

// queueChange saves a change for deliverChanges. If there are no listeners, it drops the change.
func (s *Sim) queueChange(c Change) {
	if len(s.listeners) > 0 {
		s.changes = append(s.changes, c)
	}
}

// deliverChanges calls the listeners for all queued changes. If another goroutine is already calling the listeners,
// deliverChanges waits.
func (s *Sim) deliverChanges() {
	s.delivery.Lock()
	defer s.delivery.Unlock()
	for {
		s.mu.Lock()
		if len(s.changes) == 0 {
			s.mu.Unlock()
			return
		}
		c, listeners := s.changes[0], slices.Clone(s.listeners)
		s.changes = s.changes[1:]
		s.mu.Unlock()
		for _, f := range listeners {
			f(c)
		}
	}
}

// runAfter calls f after the duration d, or at once if d is 0. f runs with the lock held, and the caller of runAfter
// must hold the lock.
func (s *Sim) runAfter(d time.Duration, f func()) {
	if d <= 0 {
		f()
		return
	}
	time.AfterFunc(d, func() { s.update(f) })
}

// nextNumber returns the next number of a kind: 1, then 2 and so on.
func (s *Sim) nextNumber(kind string) int {
	s.counts[kind]++
	return s.counts[kind]
}
