// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package call

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// EC2's "no" is about an ENI, a subnet, an action, the instance or the account: see [aws.Scope]. A
// growth passes over the ENI or the subnet, and tries what else there is. The registry remembers
// the refusal for some time, so the next process passes over the same, and does not ask again at
// once. It is not about others: an ADD of another pool that needs neither this ENI nor this subnet
// does not see it.
//
// What EC2 refuses for want of addresses is not remembered here. A full subnet has another record, see fail. So have a
// full instance and a full account.

// Explain adds the CNI error code and the hint, which the container runtime shows.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*plugin.Error](err); ok {
		return err
	}
	return plugin.Errorf(plugin.CodeTryAgain, aws.Hint(err), "%w", err)
}

// IsFull reports whether err means that this ENI or subnet has no room, so that growth may try another one. IsFull
// returns false if EC2 may have carried out the call, because growth could then get the addresses twice.
func IsFull(err error) bool {
	return !aws.MaybeDone(err) &&
		(errors.Is(err, aws.ErrENIFull) || errors.Is(err, aws.ErrSubnetFull) || errors.Is(err, aws.ErrNotFound))
}

// An Object is what a changing call is about.
type Object struct {
	ENI, Subnet string
	Handled     func(error) bool // refusals that the caller itself answers with another call; nil: none
}

// refusalOf returns the refusal in err, and the ID of the refused ENI or subnet, or "" if EC2 refused the action
// itself. ok is false if the node must not remember the refusal.
func (o Object) refusalOf(s *registry.State, err error) (about string, r aws.Refusal, ok bool) {
	r, ok = aws.RefusalOf(err)
	if !ok || r.Lasts == 0 || o.Handled != nil && o.Handled(err) {
		return "", r, false
	}
	switch e, known := s.ENIs[o.ENI]; {
	case r.Scope == aws.ScopeSubnet:
		about = o.Subnet
	case r.Scope == aws.ScopeENI, known && GoesOn(err, e.Managed):
		about = o.ENI
	case r.Scope == aws.ScopeAction:
		return "", r, true
	}
	return about, r, about != ""
}

// Refuse records the refusal in err, if there is one to remember.
func (o Object) Refuse(s *registry.State, action string, err error, jitter func(time.Duration) time.Duration) {
	if about, r, ok := o.refusalOf(s, err); ok {
		remember(s, action, about, r.Error, r.Lasts/3+jitter(r.Lasts*2/3))
	}
}

// remember records a refusal. If it is recorded already, and still counts, its time stays.
func remember(s *registry.State, action, about string, e *aws.Error, lasts time.Duration) {
	now, key := time.Now(), registry.RefusalKey(action, about)
	s.PruneRefusals(now)
	if _, counts := s.Refusals[key]; counts {
		return
	}
	s.Refusals[key] = registry.Refusal{Code: e.Code, Message: e.Brief(), Request: e.RequestID, Since: now,
		Until: now.Add(min(lasts, registry.MostRefusal))}
	slog.Warn("EC2 refuses this. The node passes over it for a while", "action", action, "about", about, "error", e)
}

// Standing returns an error if a refusal of the action, on one of the IDs or on everything, still counts. The error is
// EC2's.
func Standing(s *registry.State, action string, about ...string) error {
	now := time.Now()
	for _, id := range append(about, "") {
		r, ok := s.Refusals[registry.RefusalKey(action, id)]
		if ok && now.Before(r.Until) {
			return standingError(action, id, r)
		}
	}
	return nil
}

func standingError(action, about string, r registry.Refusal) error {
	what := "this action"
	if about != "" {
		what = about
	}
	return fmt.Errorf("EC2 has refused %s, and this node asks again after %s: %w", what, r.Until.Format(time.RFC3339),
		&aws.Error{Action: action, Code: r.Code, Message: r.Message, RequestID: r.Request})
}

// Refused returns EC2's refusals that count, for people: what each is about, and what an operator
// can do.
func Refused(s *registry.State, key string) (action, about string, err error) {
	action, about, _ = strings.Cut(key, " ")
	return action, about, standingError(action, about, s.Refusals[key])
}

// Standing is the function Standing with the latest state.
func (p *Node) Standing(action string, about ...string) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	return Standing(s, action, about...)
}

// AskAgain forgets EC2's refusals. An operator who gives a command may have repaired what was wrong.
func (p *Node) AskAgain(ctx context.Context) error {
	s, err := p.Registry.View()
	if err != nil || len(s.Refusals) == 0 {
		return err
	}
	return p.Registry.Change(ctx, func(s *registry.State) { clear(s.Refusals) })
}

// NoteRefusal records the refusal in err of a call about o. It returns err.
func (p *Node) NoteRefusal(ctx context.Context, action string, o Object, err error) error {
	s, e := p.Registry.View()
	if e != nil {
		return err
	}
	if _, _, ok := o.refusalOf(s, err); !ok {
		return err
	}
	e = p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		o.Refuse(s, action, err, p.Cloud.Jitter)
	})
	if e != nil {
		slog.Warn("a refusal of EC2 could not be recorded: the next process asks again", "action", action, "error", e)
	}
	return err
}

// GoesOn reports whether err is a refusal of one ENI or subnet, so that growth may try another. A good policy allows
// changes only of ENIs that the node makes, by their tags. The original's ENIs have no tags: the role may not change
// these, but it may change other ENIs.
func GoesOn(err error, managed bool) bool {
	r, ok := aws.RefusalOf(err)
	return ok && (r.Scope == aws.ScopeENI || r.Scope == aws.ScopeSubnet || !managed && aws.NotAllowed(err))
}

// IsPartial reports whether EC2 has refused to unassign because the ENI no longer has all that it was to lose.
func IsPartial(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return ok && (e.Action == book.UnassignAction || e.Action == book.Unassign6Action) &&
		e.Code == "InvalidParameterValue"
}

// Misplaced reports whether err, of an attachment, is about where the ENI is: no ENI of its subnet can be attached.
func Misplaced(err error) bool {
	r, ok := aws.RefusalOf(err)
	return ok && r.Scope == aws.ScopeSubnet
}

// patience is how long an ENI may be in a transition that EC2 does not let it be attached in. EC2 needs seconds.
const patience = time.Minute

// Stuck returns an error that is about the subnet, if EC2 still finds a new ENI in a transition after
// patience. Otherwise, a node would wait for ever for an ENI that cannot be attached.
func (p *Node) Stuck(ctx context.Context, s *registry.State, token string, o Object, err error) bool {
	i, begun := s.Intents[token]
	r, ok := aws.RefusalOf(err)
	if !ok || r.Scope != aws.ScopeENI || r.Lasts == 0 || !begun || time.Since(i.Since) < patience {
		return false
	}
	e := p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		remember(s, book.AttachAction, o.Subnet, r.Error, registry.MostRefusal)
	})
	return e == nil
}
