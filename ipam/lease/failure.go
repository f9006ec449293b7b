// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// One process asks EC2 on behalf of all waiting ADDs, so EC2's answer is the answer to all these ADDs. If EC2 refuses,
// the process records a Failure in the registry. The Failure stays until an ADD of the same pool gets an address. But
// if a subnet is full, the Failure stays at least until the time in the Failure's field Until.

// recentFailure returns an error if another process has just asked EC2 on behalf of all waiting ADDs, and has failed.
// So after a refusal of EC2, a hundred waiting ADDs do not ask EC2 one after the other. The other process asked only on
// behalf of the waiters of that time. So recentFailure returns this error only if the owner was already a waiter when
// the other process began to ask. But if a subnet is full, recentFailure also returns an error to later waiters. The
// argument takeErr is the error that Take has returned.
func (p *Pool) recentFailure(o Owner, takeErr error) error {
	const justNow = 2 * time.Second
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	f := s.Failures[p.Concern(o)]
	w, ok := s.Waiters[o.waiterKey()]
	switch {
	case ok && f.Began.After(w.Since) && time.Since(f.Since) <= justNow:
		return plugin.Errorf(plugin.CodeTryAgain, f.Hint,
			"%w: another ADD asked EC2 for all waiting ADDs of this node, and failed: %s", Lacking(takeErr), f.Text)
	case time.Now().Before(f.Until):
		return plugin.Errorf(plugin.CodeTryAgain, f.Hint, "%w: EC2 gave no addresses, and this node asks EC2 again "+
			"after %s: %s",
			Lacking(takeErr),
			f.Until.Format(time.RFC3339), f.Text)
	}
	return nil
}

// overdueError returns the error of an ADD whose time has ended while another process asked EC2. The returned error
// says what delays that process. The argument waitErr is the reason why the ADD has stopped waiting for its turn.
func (p *Pool) overdueError(o Owner, waitErr error) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	what, hint := p.delayCause(s, o)
	return plugin.Errorf(plugin.CodeTryAgain, hint,
		"%w: another ADD is still asking EC2 for all waiting ADDs of this node: %s: %w", ErrNone, what, waitErr)
}

// delayCause returns what delays the process that asks EC2, and what an operator can do about this delay. delayCause
// looks for three causes, in this order: EC2 throttles, EC2 has refused a call, or EC2 has not answered yet.
func (p *Pool) delayCause(s *registry.State, o Owner) (what, hint string) {
	const patience = 10 * time.Second // longer than any backoff
	since := s.Waiters[o.waiterKey()].Since
	// The time since is zero if another ADD has deleted this ADD's waiter, because the waiter's deadline had passed.
	if action := throttledAction(s, cmp.Or(since, time.Now())); action != "" {
		return Throttled(action, s.NotBefore[action])
	}
	f, call := s.Failures[p.Concern(o)], latestCall(s)
	switch {
	case f.Since.After(since.Add(-patience)) && f.Since.After(call.Since):
		return f.Text, f.Hint
	case call.Action != "":
		return fmt.Sprintf("EC2 has not answered %s since %s", call.Action, call.Since.Format(time.RFC3339)),
			"EC2 is slow: raise addTimeout to give it more time"
	}
	return "that ADD has no answer yet", "see the log of the container runtime, and 'cni-ipvlan-vpc-k8s-tool status'"
}

// Throttled returns an error text and its hint. The text says that this node waits until a time before it calls the EC2
// action again. The argument until is this time. Package aws has the same hint, but this package must not import
// package aws.
func Throttled(action string, until time.Time) (text, hint string) {
	return fmt.Sprintf("%s: EC2 throttles: this node waits until %s", action, until.Format(time.RFC3339)),
		fmt.Sprintf("EC2 limits how often the whole account may call %s: to make fewer calls, use larger batches "+
			"(ipBatchSize), prefixes, "+
			"or ENIs from the launch template", action)
}

// releaseActions are the EC2 actions that release something. No growth calls them.
var releaseActions = []string{"UnassignPrivateIpAddresses", "UnassignIpv6Addresses", "DetachNetworkInterface",
	"DeleteNetworkInterface"}

// throttledAction returns the throttled action for which a growth has to wait the longest. The argument notBefore is a
// time: throttledAction ignores actions that the node may call at this time. If no action is left, throttledAction
// returns "".
func throttledAction(s *registry.State, notBefore time.Time) (action string) {
	for a, until := range s.NotBefore {
		if until.After(notBefore) && !slices.Contains(releaseActions, a) {
			action, notBefore = a, until
		}
	}
	return action
}

// latestCall returns the youngest intent of a growth. It leaves out intents of ModifyNetworkInterfaceAttribute, because
// such an intent can stay for long although no process makes the call. It also leaves out intents to release an
// address.
func latestCall(s *registry.State) (last registry.Intent) {
	for _, i := range s.Intents {
		if i.Action != "ModifyNetworkInterfaceAttribute" && !ReleasesChosen(i) && i.Since.After(last.Since) {
			last = i
		}
	}
	return last
}
