// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"fmt"
	"time"
)

// A Phase is a part of an ENI's life on this node. The list below has a condition for each phase. The first condition
// that is true determines the ENI's phase. docs/design.md describes the steps between the phases.
type Phase string

// The phases of an ENI.
const (
	Draining Phase = "draining" // the ENI will be deleted: no new leases
	// the ENI's owner forbids changes, or the ENI had no address when a process first found it: it serves no pods
	Foreign  Phase = "foreign"
	Detached Phase = "detached" // EC2 reports that the ENI is no longer attached to this instance
	// the node has not asked EC2 who owns the ENI, or EC2 has not answered. Until EC2 answers, pods get none of the
	// ENI's addresses, except with the provision "none" (see Misfit of package lease)
	Unknown Phase = "unknown"
	// the configuration's interfaceIndex is now greater than the ENI's device index: new pods get none of the ENI's
	// addresses
	PassedOver Phase = "passed over"
	Serving    Phase = "serving" // pods get the ENI's addresses, and the node knows how many to keep free
	Idle       Phase = "idle"    // pods may get the ENI's addresses; the node does not know yet how many to keep free
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

// An Origin says why an ENI is attached to this node. The origin determines what the node may do with the ENI.
type Origin string

// The origins of an ENI.
const (
	BootENI   Origin = "boot"     // EC2 launched the instance with this ENI: the node never detaches it
	Requested Origin = "request"  // a pod has asked for this ENI: the node only attaches and detaches it
	ThisNode  Origin = "node"     // this node has created this ENI for pods, and deletes it
	Operator  Origin = "operator" // an operator or another program attached this ENI: the node must not delete it
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

// Wrong returns a text about fields of the ENI that contradict each other, or "" if no fields contradict each other.
// The methods below never make fields contradict each other.
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

// The following methods are the steps of an ENI's life. No other code changes the fields from which Phase computes the
// phase.

// Drain records that a process will delete the ENI, or only detach an ENI on request. An operator may also drain a
// foreign ENI. A process asks EC2 who owns such an ENI before it changes the ENI.
func (e *ENI) Drain() {
	e.Draining = true
}

// Undrain records that no process will delete or detach the ENI. The ENI returns to the phase that it had before Drain.
func (e *ENI) Undrain() {
	e.Draining, e.Detaching = false, time.Time{}
}

// Disown records that the ENI is foreign: the node must not change it. Disown also ends the draining of the ENI.
func (e *ENI) Disown() {
	e.Undrain()
	e.Foreign = true
}

// Serve records that the ENI serves its pool. An ENI on request serves no pool. If such an ENI served a pool, a
// collection would unassign the ENI's free addresses.
func (e *ENI) Serve() {
	e.Serving = !e.OnRequest
}

// Configure records what the configuration says about the ENI. The configuration must have the ENI's pool. If
// servesPods is true, the ENI's device index is not less than interfaceIndex. If keepAddrs is true, the node never
// unassigns the ENI's addresses. For example, the key skipDeallocation makes keepAddrs true.
func (e *ENI) Configure(fitsPool, servesPods, keepAddrs bool) {
	e.Serving, e.Passed, e.Keep, e.PoolGone = fitsPool && !e.OnRequest, !servesPods, keepAddrs, false
}

// Closed reports whether the ENI gives no addresses to new pods. This is so if interfaceIndex is now greater than the
// ENI's device index, or if an operator has retired the ENI. The free addresses of a closed ENI do not count for its
// pool.
func (e *ENI) Closed() bool { return e.Passed || e.Retired }

// Request records that a pod has asked for the ENI. The ENI then serves no pool.
func (e *ENI) Request() {
	e.Serving, e.OnRequest = false, true
}

// Doubt records that the ENI's tags are unknown. The argument is the reason: NotAsked or NotAllowed.
func (e *ENI) Doubt(why string) {
	e.TagsUnknown = why
}

// Confirm records that EC2 has reported the ENI's tags.
func (e *ENI) Confirm() {
	e.TagsUnknown = ""
}

// Detach records that EC2 does not report the ENI as attached to this instance. If the ENI is not Detachable, the field
// Detached stays false.
func (e *ENI) Detach() {
	e.Detached = e.Detachable()
}

// Attach records that EC2 reports the ENI as attached.
func (e *ENI) Attach() {
	e.Detached = false
}

// Reattach records that a detached ENI was attached again. Its link may then be missing for LinkPatience, like that of
// a new ENI.
func (e *ENI) Reattach() {
	if e.Detached {
		e.Detached, e.Missed, e.Link = false, time.Time{}, ""
	}
}

// Find records that the link of the ENI is on the node. It also records the link's name.
func (e *ENI) Find(link string) {
	e.Link, e.Missed, e.Detached = link, time.Time{}, false
}

// Miss records a time when the link of the ENI was not on the node. If an earlier call of Miss has recorded a time,
// Miss does not change that time.
func (e *ENI) Miss(at time.Time) {
	if e.Missed.IsZero() {
		e.Missed = at
	}
}

// Edit calls the function change with an ENI of the state, and stores the changed ENI in the state. If the state does
// not have the ENI, Edit does nothing.
func (s *State) Edit(eni string, change func(*ENI)) {
	if e, known := s.ENIs[eni]; known {
		change(&e)
		s.ENIs[eni] = e
	}
}
