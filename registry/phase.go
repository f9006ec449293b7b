// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"fmt"
	"time"
)

// A Phase is a part of an ENI's life on this node. The phase follows from the fields of the ENI. If several phases are
// true, the first of them in the list below counts. docs/design.md has the steps between the phases.
type Phase string

// The phases of an ENI.
const (
	Draining   Phase = "draining"    // on the way to its deletion: no new leases
	Foreign    Phase = "foreign"     // its owner forbids changes, or it had no address at first: it serves no pods
	Detached   Phase = "detached"    // EC2 reports that it is no longer attached to this instance
	Unknown    Phase = "unknown"     // the node could not ask EC2 for its owner: pods get no address until EC2 answers
	PassedOver Phase = "passed over" // interfaceIndex is now above its device index: new pods get no address
	Serving    Phase = "serving"     // pods get its addresses, and the node knows how many to keep free
	Idle       Phase = "idle"        // pods may get its addresses, and the node does not know yet how many to keep free
)

// Phase returns the phase of the ENI.
func (e *ENI) Phase() Phase {
	switch {
	case e.Draining:
		return Draining
	case e.Foreign:
		return Foreign
	case e.Detached:
		return Detached
	case e.TagsUnknown == NotAsked && !e.IsBoot():
		return Unknown
	case e.Passed:
		return PassedOver
	case e.Serving:
		return Serving
	}
	return Idle
}

// An Origin says who has attached an ENI to this node. The origin decides what the node may do with the ENI.
type Origin string

// The origins of an ENI.
const (
	BootENI   Origin = "boot"     // EC2 launched the instance with it: the node itself uses it, and never detaches it
	Requested Origin = "request"  // a pod has asked for it: the node attaches and detaches it, and changes nothing else
	ThisNode  Origin = "node"     // this node has created it for pods, and deletes it
	Operator  Origin = "operator" // an operator or another program attached it: the node may use, but not delete it
)

// Origin returns the origin of the ENI.
func (e *ENI) Origin() Origin {
	switch {
	case e.IsBoot():
		return BootENI
	case e.OnRequest:
		return Requested
	case e.Managed:
		return ThisNode
	}
	return Operator
}

// Wrong names the fields of the ENI that contradict each other, or returns "". The steps below never make such an ENI.
func (e *ENI) Wrong() string {
	switch phase := e.Phase(); {
	case !e.Detaching.IsZero() && !e.Draining:
		return fmt.Sprintf("it is %s, and since %v a process detaches it", phase, e.Detaching)
	case e.Detached && !e.Detachable():
		return fmt.Sprintf("it is detached, at device index %d of card %d", e.Index, e.Card)
	case e.OnRequest && e.Serving:
		return "a pod has asked for it, and it serves its pool"
	}
	return ""
}

// The steps of an ENI's life. No other code changes the fields from which the phase follows.

// Drain begins the way to the ENI's deletion. An operator may also drain a foreign ENI. Before a process changes such
// an ENI, the process asks EC2 for the owner.
func (e *ENI) Drain() {
	e.Draining = true
}

// Undrain ends the way to the ENI's deletion. The ENI has its earlier phase again.
func (e *ENI) Undrain() {
	e.Draining, e.Detaching = false, time.Time{}
}

// Disown records that the node may not change the ENI: the ENI is foreign. After Disown, the ENI is no longer on the
// way to its deletion.
func (e *ENI) Disown() {
	e.Undrain()
	e.Foreign = true
}

// Serve records that the ENI serves its pool. An ENI for which a pod has asked does not serve a pool. Otherwise a
// collection would unassign its addresses.
func (e *ENI) Serve() {
	e.Serving = !e.OnRequest
}

// Configure records what the configuration says about the ENI. The argument fits says that the ENI fits its pool, and
// serves says that its device index is for pods. The argument keep says that its addresses are never unassigned, for
// example because of skipDeallocation. The configuration has the pool of the ENI.
func (e *ENI) Configure(fits, serves, keep bool) {
	e.Serving, e.Passed, e.Keep, e.PoolGone = fits && !e.OnRequest, !serves, keep, false
}

// Closed reports whether new pods get no address of the ENI, because interfaceIndex is now above its index, or because
// an operator renews it. Then its free addresses do not count for the pool.
func (e *ENI) Closed() bool { return e.Passed || e.Retired }

// Request records that a pod has asked for the ENI. If the ENI has served a pool, it no longer does.
func (e *ENI) Request() {
	e.Serving, e.OnRequest = false, true
}

// Doubt records why EC2 has not reported the ENI's tags: NotAsked or NotAllowed.
func (e *ENI) Doubt(why string) {
	e.TagsUnknown = why
}

// Confirm records that EC2 has reported the ENI's tags.
func (e *ENI) Confirm() {
	e.TagsUnknown = ""
}

// Detach records that EC2 does not report the ENI as attached to this instance.
func (e *ENI) Detach() {
	e.Detached = e.Detachable()
}

// Attach records that EC2 reports the ENI as attached.
func (e *ENI) Attach() {
	e.Detached = false
}

// Reattach records that a detached ENI was attached again. Its link is not on the node yet.
func (e *ENI) Reattach() {
	if e.Detached {
		e.Detached, e.Missed, e.Link = false, time.Time{}, ""
	}
}

// Find records that the link of the ENI, with this name, is on the node.
func (e *ENI) Find(link string) {
	e.Link, e.Missed, e.Detached = link, time.Time{}, false
}

// Miss records that the link of the ENI is not on the node at a time. If several calls record times, the first time
// stays.
func (e *ENI) Miss(at time.Time) {
	if e.Missed.IsZero() {
		e.Missed = at
	}
}

// Edit changes the entry of an ENI, if the state has this ENI.
func (s *State) Edit(eni string, change func(*ENI)) {
	if e, known := s.ENIs[eni]; known {
		change(&e)
		s.ENIs[eni] = e
	}
}
