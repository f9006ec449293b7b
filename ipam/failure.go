// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// One process asks EC2 for all that wait, so what EC2 says to it is the answer to all of
// them. The registry has it as a Failure until an ADD of the same pool gets an address.

// fail records why EC2 has not given what was asked for since the time began. With the
// zero time it will be asked again.
func (p *Pool) fail(ctx context.Context, o lease.Owner, why error, began time.Time) error {
	if errors.Is(why, context.DeadlineExceeded) || errors.Is(why, context.Canceled) {
		began = time.Time{} // it was our time that has ended
	}
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		s.Failures[p.Concern(o)] = registry.Failure{Text: why.Error(), Hint: hint(why), Began: began, Since: time.Now()}
	})
}

// hint is what an operator can do about an error.
func hint(err error) string {
	if e, ok := errors.AsType[*plugin.Error](err); ok {
		return e.Hint
	}
	return aws.Hint(err)
}

// told returns the failure of another process that is an answer to the owner, too: it
// has asked since the owner waits, and just now. A hundred ADDs that wait for what EC2
// refuses do not each ask in turn.
func (p *Pool) told(o lease.Owner) error {
	const justNow = 2 * time.Second
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	f := s.Failures[p.Concern(o)]
	if w, ok := s.Wishes[o.Key.String()]; !ok || !f.Began.After(w.Since) || time.Since(f.Since) > justNow {
		return nil
	}
	return plugin.Errorf(plugin.CodeTryAgain, f.Hint, "%w: another process of this node has asked for all that wait: %s", lease.ErrNone, f.Text)
}

// overdue is the error of an ADD whose time has ended while it waited for another
// process: it says what that one waits for.
func (p *Pool) overdue(o lease.Owner, ended error) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	what, hint := p.holdup(s, o)
	return plugin.Errorf(plugin.CodeTryAgain, hint, "%w: another process of this node asks EC2 for all that wait: %s: %w", lease.ErrNone, what, ended)
}

// holdup is what keeps the process that asks EC2, and what an operator can do about it:
// EC2 throttles, or has failed, or has not answered yet.
func (p *Pool) holdup(s *registry.State, o lease.Owner) (what, hint string) {
	const patience = 10 * time.Second // longer than any backoff
	since := s.Wishes[o.Key.String()].Since
	if action := throttled(s, since); action != "" {
		return throttledUntil(action, s.NotBefore[action]), hintThrottled(action)
	}
	f, call := s.Failures[p.Concern(o)], underWay(s)
	switch {
	case f.Since.After(since.Add(-patience)) && f.Since.After(call.Since):
		return f.Text, f.Hint
	case call.Action != "":
		return fmt.Sprintf("%s has begun at %s", call.Action, call.Since.Format(time.RFC3339)), "EC2 takes long: a longer addTimeout gives it more time"
	}
	return "it has no answer yet", "see its log"
}

// throttled is the action that growth may call again the latest, and not before the time.
func throttled(s *registry.State, after time.Time) (action string) {
	for a, until := range s.NotBefore {
		if until.After(after) && !strings.HasPrefix(a, "Unassign") {
			action, after = a, until
		}
	}
	return action
}

// underWay is the call that a growth has begun last. What resume has to look after need
// not be under way.
func underWay(s *registry.State) (last registry.Intent) {
	for _, i := range s.Intents {
		if !isLook(i) && i.Action != modify && i.Since.After(last.Since) {
			last = i
		}
	}
	return last
}
