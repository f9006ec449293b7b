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

// A refusal of EC2 is about an ENI, a subnet, an action, the instance or the account: see [aws.Scope]. If EC2 refuses
// an ENI or a subnet, a growth tries other ENIs and subnets. The registry keeps the refusal for some time, so that
// later processes do not ask again at once.
//
// For a full subnet, the registry has a record of another type (registry.Failure). For a full instance, and for a
// used-up quota of the account, it has the times FullUntil and QuotaUntil (registry.Instance).

// Explain adds a CNI error code and a hint to err, if err has none. The container runtime shows the code and the hint.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*plugin.Error](err); ok {
		return err
	}
	return plugin.Errorf(plugin.CodeTryAgain, aws.Hint(err), "%w", err)
}

// IsFull reports whether err means that the ENI or the subnet of a call has no room, or is not found. A growth may then
// try another ENI or subnet. If EC2 may have carried out the call, IsFull returns false, because a second call could
// get addresses twice.
func IsFull(err error) bool {
	return !aws.MaybeDone(err) &&
		(errors.Is(err, aws.ErrENIFull) || errors.Is(err, aws.ErrSubnetFull) || errors.Is(err, aws.ErrNotFound))
}

// An Object names the ENI and the subnet that a changing call is about.
type Object struct {
	ENI, Subnet string
	// Handled reports whether the caller handles a refusal itself, for example with another ENI. The registry does not
	// record such a refusal. If Handled is nil, the caller handles no refusal.
	Handled func(error) bool
}

// refusalOf returns the refusal in err, and the ID of the refused ENI or subnet. If EC2 refused the action itself, the
// ID is "". If the node must not record the refusal, ok is false.
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

// RecordRefusal records the refusal in err, if the node must remember it.
func (o Object) RecordRefusal(s *registry.State, action string, err error, jitter func(time.Duration) time.Duration) {
	if about, r, ok := o.refusalOf(s, err); ok {
		addRefusal(s, action, about, r.Error, r.Lasts/3+jitter(r.Lasts*2/3))
	}
}

// addRefusal adds EC2's refusal e to the registry. If the registry has an unexpired refusal of the same action and
// object, addRefusal keeps that refusal.
func addRefusal(s *registry.State, action, about string, e *aws.Error, lasts time.Duration) {
	now, key := time.Now(), registry.RefusalKey(action, about)
	s.PruneRefusals(now)
	if _, counts := s.Refusals[key]; counts {
		return
	}
	s.Refusals[key] = registry.Refusal{Code: e.Code, Message: e.Brief(), Request: e.RequestID, Since: now,
		Until: now.Add(min(lasts, registry.MostRefusal))}
	warning := "EC2 refuses an action: for a while, this node does not repeat it for any ENI or subnet"
	if about != "" {
		warning = "EC2 refuses an action for an ENI or subnet: for a while, this node does not repeat it there"
	}
	slog.Warn(warning, "action", action, "about", about, "error", e)
}

// StandingRefusal returns EC2's error if the registry has an unexpired refusal of the action. The refusal is about the
// action in general, or about one of the given ENIs and subnets.
func StandingRefusal(s *registry.State, action string, about ...string) error {
	now := time.Now()
	for _, id := range append(about, "") {
		r, ok := s.Refusals[registry.RefusalKey(action, id)]
		if ok && now.Before(r.Until) {
			return standingError(action, id, r)
		}
	}
	return nil
}

func standingError(action, refusedID string, r registry.Refusal) error {
	what := "this action"
	if refusedID != "" {
		what += " for " + refusedID
	}
	return fmt.Errorf("EC2 has refused %s, and this node asks again after %s: %w", what, r.Until.Format(time.RFC3339),
		&aws.Error{Action: action, Code: r.Code, Message: r.Message, RequestID: r.Request})
}

// Refused returns the parts of a recorded refusal, to show them to people. If EC2 refused the action itself, about is
// "".
func Refused(s *registry.State, key string) (action, about string, err error) {
	action, about, _ = strings.Cut(key, " ")
	return action, about, standingError(action, about, s.Refusals[key])
}

// StandingRefusal calls the function StandingRefusal with the latest state of the registry.
func (p *Node) StandingRefusal(action string, about ...string) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	return StandingRefusal(s, action, about...)
}

// ForgetRefusals removes all refusals from the registry. Commands of operators call it, because the operator may have
// removed the causes of the refusals.
func (p *Node) ForgetRefusals(ctx context.Context) error {
	s, err := p.Registry.View()
	if err != nil || len(s.Refusals) == 0 {
		return err
	}
	return p.Registry.Change(ctx, func(s *registry.State) { clear(s.Refusals) })
}

// NoteRefusal records the refusal in err: see RecordRefusal. It returns err unchanged.
func (p *Node) NoteRefusal(ctx context.Context, action string, o Object, err error) error {
	s, e := p.Registry.View()
	if e != nil {
		return err
	}
	if _, _, ok := o.refusalOf(s, err); !ok {
		return err
	}
	e = p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		o.RecordRefusal(s, action, err, p.Cloud.Jitter)
	})
	if e != nil {
		slog.Warn("a refusal of EC2 could not be recorded, so the next process asks EC2 again", "action", action,
			"error", e)
	}
	return err
}

// GoesOn reports whether err is a refusal of only one ENI or one subnet, so that a growth may try another ENI or
// subnet. The argument managed is true if this node has created the ENI. If managed is false, a missing permission also
// counts as a refusal of only this ENI. A good IAM policy lets the role change only ENIs with the node's tags, and ENIs
// of the original plugin have no such tags.
func GoesOn(err error, managed bool) bool {
	r, ok := aws.RefusalOf(err)
	return ok && (r.Scope == aws.ScopeENI || r.Scope == aws.ScopeSubnet || !managed && aws.NotAllowed(err))
}

// IsPartial reports whether EC2 has refused to unassign addresses because the ENI no longer has all of them.
func IsPartial(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return ok && (e.Action == book.UnassignAction || e.Action == book.Unassign6Action) &&
		e.Code == "InvalidParameterValue"
}

// IsMisplaced reports whether err, the error of an attachment, means that EC2 attaches no ENI of this subnet to this
// instance.
func IsMisplaced(err error) bool {
	r, ok := aws.RefusalOf(err)
	return ok && r.Scope == aws.ScopeSubnet
}

// longestTransition is how long EC2 may refuse to attach a new ENI, because the ENI is in a transition. Usually, a
// transition takes seconds.
const longestTransition = time.Minute

// IsStuck reports whether a new ENI has been in a transition for longer than longestTransition. If so, IsStuck records
// a refusal of the subnet. Without this record, a node could wait for ever for an ENI that cannot be attached.
func (p *Node) IsStuck(ctx context.Context, s *registry.State, token string, o Object, err error) bool {
	i, begun := s.Intents[token]
	r, ok := aws.RefusalOf(err)
	if !ok || r.Scope != aws.ScopeENI || r.Lasts == 0 || !begun || time.Since(i.Since) < longestTransition {
		return false
	}
	e := p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		addRefusal(s, book.AttachAction, o.Subnet, r.Error, registry.MostRefusal)
	})
	return e == nil
}
