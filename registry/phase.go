// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"fmt"
	"time"
)

// A Phase is a part of an ENI's life on this node. The phase follows from what the registry knows of the ENI. Of
// several phases that are true, the first of these constants is the ENI's. docs/design.md has the steps between them.
type Phase string

// The phases of an ENI.
const (
	Draining   Phase = "draining"    // on the way to its deletion: no new leases
	Foreign    Phase = "foreign"     // others have attached it, and it does not fit the pool: no pod gets its addresses
	Detached   Phase = "detached"    // EC2 reports that it is no longer attached to this instance
	Unknown    Phase = "unknown"     // EC2 could not be asked whose it is: no pod gets its addresses until it can
	PassedOver Phase = "passed over" // interfaceIndex is higher now: no pod gets its addresses, and none is ready
	Serving    Phase = "serving"     // pods get its addresses, and how many of them to keep is known
	Idle       Phase = "idle"        // pods may get its addresses, and nothing says yet how many to keep
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

// An Origin says who has brought an ENI to this node, and so what the node may do with it.
type Origin string

// The origins of an ENI.
const (
	BootENI   Origin = "boot"     // EC2 launched the instance with it: it is the node's own, and stays
	Requested Origin = "request"  // a pod has asked for it: the node attaches and detaches it, and changes nothing else
	ThisNode  Origin = "node"     // this node has created it for pods, and deletes it
	Operator  Origin = "operator" // an operator or another program: the node uses what fits, and does not delete it
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

// Wrong names the fields of the ENI that contradict each other, or returns "". The steps below never lead there.
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

// The steps of an ENI's life. No other code changes what its phase follows from.

// Drain begins the way to the ENI's deletion. An operator may also drain a foreign ENI: a process asks EC2 for its
// owner before it does anything.
func (e *ENI) Drain() {
	e.Draining = true
}

// Undrain takes the ENI off the way to its deletion. The ENI is what it was before.
func (e *ENI) Undrain() {
	e.Draining, e.Detaching = false, time.Time{}
}

// Disown records that the node may change nothing of the ENI. After Disown, the ENI is no longer on the way to its
// deletion.
func (e *ENI) Disown() {
	e.Undrain()
	e.Foreign = true
}

// Serve records that the ENI serves its pool, unless a pod has asked for the ENI: a collection would unassign its
// addresses.
func (e *ENI) Serve() {
	e.Serving = !e.OnRequest
}

// Configure records what the configuration says of the ENI. For example, the ENI fits its pool or not, and its place
// serves pods or not. Its addresses may be kept, as by skipDeallocation.
func (e *ENI) Configure(fits, serves, keep bool) {
	e.Serving, e.Passed, e.Keep = fits && !e.OnRequest, !serves, keep
}

// Closed reports whether new pods get no address of the ENI. Then its addresses do not count as ready. Either
// interfaceIndex is higher now, or an operator renews the ENI.
func (e *ENI) Closed() bool { return e.Passed || e.Retired }

// Request records that a pod has asked for the ENI. The ENI may have served a pool before.
func (e *ENI) Request() {
	e.Serving, e.OnRequest = false, true
}

// Doubt records why EC2 has not reported the ENI's tags: NotAsked or NotAllowed.
func (e *ENI) Doubt(why string) {
	e.TagsUnknown = why
}

// Confirm records that EC2 has reported whose the ENI is.
func (e *ENI) Confirm() {
	e.TagsUnknown = ""
}

// Detach records that EC2 does not report the ENI as attached to this instance.
func (e *ENI) Detach() {
	e.Detached = e.Detachable()
}

// Attach records that EC2 reports it as attached.
func (e *ENI) Attach() {
	e.Detached = false
}

// Reattach records that a detached ENI was attached again. Its link has yet to appear.
func (e *ENI) Reattach() {
	if e.Detached {
		e.Detached, e.Missed, e.Link = false, time.Time{}, ""
	}
}

// Find records that the link of the ENI, with this name, is on the node.
func (e *ENI) Find(link string) {
	e.Link, e.Missed, e.Detached = link, time.Time{}, false
}

// Miss records that the link of the ENI is not on the node at a time. The first such time counts.
func (e *ENI) Miss(at time.Time) {
	if e.Missed.IsZero() {
		e.Missed = at
	}
}

// Edit changes what the state has of an ENI, if it knows the ENI.
func (s *State) Edit(eni string, change func(*ENI)) {
	if e, known := s.ENIs[eni]; known {
		change(&e)
		s.ENIs[eni] = e
	}
}
