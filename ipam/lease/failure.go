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

// One process asks EC2 for all waiting ADDs, so EC2's answer is the answer to all of them. If EC2 refuses, the registry
// has a Failure, until an ADD of the same pool gets an address. The Failure about a full subnet stays at least until
// its time Until.

// told returns an error if another process has just asked EC2 on behalf of the owner, and failed. The other process
// must have begun after the owner became a waiter. So if EC2 refuses, a hundred waiting ADDs do not ask one after the
// other. If a subnet is full, the failure also counts for later ADDs.
func (p *Pool) told(o Owner, none error) error {
	const justNow = 2 * time.Second
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	f := s.Failures[p.Concern(o)]
	w, ok := s.Waiters[o.waiter()]
	switch {
	case ok && f.Began.After(w.Since) && time.Since(f.Since) <= justNow:
		return plugin.Errorf(plugin.CodeTryAgain, f.Hint,
			"%w: another ADD asked EC2 for all waiting ADDs of this node, and failed: %s", Lacking(none), f.Text)
	case time.Now().Before(f.Until):
		return plugin.Errorf(plugin.CodeTryAgain, f.Hint, "%w: EC2 gave no addresses, and this node asks EC2 again "+
			"after %s: %s",
			Lacking(none),
			f.Until.Format(time.RFC3339), f.Text)
	}
	return nil
}

// overdue returns the error of an ADD whose time has ended while it waited for another
// process. The error says what that process waits for.
func (p *Pool) overdue(o Owner, ended error) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	what, hint := p.holdup(s, o)
	return plugin.Errorf(plugin.CodeTryAgain, hint,
		"%w: another ADD is still asking EC2 for all waiting ADDs of this node: %s: %w", ErrNone, what, ended)
}

// holdup returns what delays the process that asks EC2, and what an operator can do about it. The first of these causes
// that holdup finds counts: EC2 throttles, EC2 has refused a call, or EC2 has not answered yet.
func (p *Pool) holdup(s *registry.State, o Owner) (what, hint string) {
	const patience = 10 * time.Second // longer than any backoff
	since := s.Waiters[o.waiter()].Since
	// since is zero if another ADD has deleted the overdue waiter of this ADD.
	if action := throttled(s, cmp.Or(since, time.Now())); action != "" {
		return Throttled(action, s.NotBefore[action])
	}
	f, call := s.Failures[p.Concern(o)], underWay(s)
	switch {
	case f.Since.After(since.Add(-patience)) && f.Since.After(call.Since):
		return f.Text, f.Hint
	case call.Action != "":
		return fmt.Sprintf("EC2 has not answered %s since %s", call.Action, call.Since.Format(time.RFC3339)),
			"EC2 is slow: raise addTimeout to give it more time"
	}
	return "that ADD has no answer yet", "see the log of the container runtime, and 'cni-ipvlan-vpc-k8s-tool status'"
}

// Throttled returns an error text and its hint. The text says that this node does not call the EC2 action before a
// time. The hint is the same as in package aws, which this package must not import.
func Throttled(action string, until time.Time) (text, hint string) {
	return fmt.Sprintf("%s: EC2 throttles: this node waits until %s", action, until.Format(time.RFC3339)),
		fmt.Sprintf("EC2 limits how often the whole account may call %s: to make fewer calls, use larger batches "+
			"(ipBatchSize), prefixes, "+
			"or ENIs from the launch template", action)
}

// releases are the actions that release something to EC2. No growth waits for them.
var releases = []string{"UnassignPrivateIpAddresses", "UnassignIpv6Addresses", "DetachNetworkInterface",
	"DeleteNetworkInterface"}

// throttled returns the throttled action for which a growth has to wait the longest, or "". throttled ignores actions
// that may be called again before the given time.
func throttled(s *registry.State, after time.Time) (action string) {
	for a, until := range s.NotBefore {
		if until.After(after) && !slices.Contains(releases, a) {
			action, after = a, until
		}
	}
	return action
}

// underWay returns the intent of the growth's latest call. It leaves out ModifyNetworkInterfaceAttribute, because the
// intent of this action may stay when no call is under way. It also leaves out calls that release an address.
func underWay(s *registry.State) (last registry.Intent) {
	for _, i := range s.Intents {
		if i.Action != "ModifyNetworkInterfaceAttribute" && !ReleasesChosen(i) && i.Since.After(last.Since) {
			last = i
		}
	}
	return last
}
