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

// One process asks EC2 on behalf of all waiting ADDs. If EC2 refuses, the process records a Failure for them in the
// registry. The Failure stays until an ADD of the same pool gets an address. If a subnet is full, the Failure stays at
// least until the time in its field Until.

// recentFailure returns an error if another process has just asked EC2 on behalf of the owner, and has failed. So a
// hundred waiting ADDs do not ask EC2 one after the other. A process asks on behalf of all owners that are waiters when
// the process begins to ask. The Failure of a full subnet is an error for later waiters, too.
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
			"%w: another ADD has asked EC2 on behalf of this ADD, too, and has failed: %s", Lacking(takeErr), f.Text)
	case time.Now().Before(f.Until):
		return plugin.Errorf(plugin.CodeTryAgain, f.Hint, "%w: EC2 gave no addresses, and this node asks EC2 again "+
			"after %s: %s",
			Lacking(takeErr),
			f.Until.Format(time.RFC3339), f.Text)
	}
	return nil
}

// overdueError returns the error of an ADD whose time has ended while another process asked EC2. It says what delays
// that process. The argument waitErr says why the ADD has stopped waiting.
func (p *Pool) overdueError(o Owner, waitErr error) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	what, hint := p.delayCause(s, o)
	return plugin.Errorf(plugin.CodeTryAgain, hint,
		"%w: another process of this node is still asking EC2 for addresses: %s: %w", ErrNone, what, waitErr)
}

// delayCause returns what delays the process that asks EC2, and what an operator can do about it.
func (p *Pool) delayCause(s *registry.State, o Owner) (what, hint string) {
	const patience = 10 * time.Second // longer than any backoff
	since := s.Waiters[o.waiterKey()].Since
	// since is zero if the waiter's deadline has passed, and another ADD has deleted the waiter.
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
	return "that process has no result yet",
		"see the log of the container runtime, and 'cni-ipvlan-vpc-k8s-tool status'"
}

// Throttled returns an error text and its hint. The text says when this node may call the EC2 action again. Package aws
// has the same hint, but this package must not import package aws.
func Throttled(action string, until time.Time) (text, hint string) {
	return fmt.Sprintf("%s: EC2 throttles: this node waits until %s", action, until.Format(time.RFC3339)),
		fmt.Sprintf("EC2 limits how often the whole account may call %s: to make fewer calls, use larger batches "+
			"(ipBatchSize), prefixes, "+
			"or ENIs from the launch template", action)
}

// releaseActions are the EC2 actions that release something. No growth calls them.
var releaseActions = []string{"UnassignPrivateIpAddresses", "UnassignIpv6Addresses", "DetachNetworkInterface",
	"DeleteNetworkInterface"}

// throttledAction returns the throttled action for which a growth has to wait the longest, or "". It ignores actions
// that the node may call at the time notBefore.
func throttledAction(s *registry.State, notBefore time.Time) (action string) {
	for a, until := range s.NotBefore {
		if until.After(notBefore) && !slices.Contains(releaseActions, a) {
			action, notBefore = a, until
		}
	}
	return action
}

// latestCall returns the youngest intent of a growth. It leaves out intents to release an address. It also leaves out
// intents of ModifyNetworkInterfaceAttribute, which can stay for long although no process makes the call.
func latestCall(s *registry.State) (last registry.Intent) {
	for _, i := range s.Intents {
		if i.Action != "ModifyNetworkInterfaceAttribute" && !ReleasesChosen(i) && i.Since.After(last.Since) {
			last = i
		}
	}
	return last
}
