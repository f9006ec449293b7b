// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// grow asks EC2 once for the addresses that all waiting ADDs of this node need. Its caller
// holds the lock "grow". It tries the cheapest way first: prefixes or addresses on an ENI
// with room, the fullest ENI first. If no ENI has room, it creates one.
func (p *Pool) grow(ctx context.Context) error { return p.withPassedOver(p.growOnce(ctx)) }

func (p *Pool) growOnce(ctx context.Context) error {
	if p.Policy.Provision == lease.ProvisionNone {
		return p.provisioned()
	}
	p.Look(ctx) // otherwise growth may ask for addresses on an ENI that somebody has detached
	if err := p.deleteOnTerminations(ctx); err != nil {
		return err
	}
	if !p.canWait() {
		sure, err := p.resume(ctx, p.reattach)
		if err != nil {
			return explain(err)
		}
		if sure {
			return nil // the addresses that are now confirmed may be enough
		}
	}
	s, err := p.describeInstance(ctx)
	if err != nil {
		return explain(err)
	}
	if s, err = p.askTags(ctx, s); err != nil {
		return err
	}
	if s, err = p.askSubnets(ctx, s); err != nil {
		return err
	}
	switch {
	case p.Policy.Choice.ENI != "":
		return explain(p.attachChosen(ctx, s))
	case len(p.Policy.Choice.Addrs) > 0:
		return explain(p.growChosen(ctx, s))
	}
	var why []error
	for _, at := range lease.Places(s, p.Policy, time.Now()) {
		err := p.fillCorrected(ctx, s, at)
		if err == nil {
			return nil
		}
		if !isFull(err) && !goesOn(err, at.Managed) {
			return explain(err)
		}
		why = append(why, err)
	}
	if p.Policy.Provision == lease.ProvisionAssign {
		if p.knowsMore(ctx, s) {
			return nil
		}
		why = append(why, errors.New(`no new ENI is created, because "provision" is "assign"`))
		return explain(errors.Join(why...))
	}
	return withWhy(why, p.addENI(ctx, s))
}

// withWhy returns the error of a new ENI, with the reasons why none of those that there are could grow. The last failure is what is
// in the way. If EC2 refuses to change an ENI, that is another.
func withWhy(why []error, err error) error {
	if err == nil {
		return nil
	}
	all := errors.Join(append(why, err)...)
	e, ok := errors.AsType[*plugin.Error](err)
	if !ok {
		e = &plugin.Error{Code: plugin.CodeTryAgain, Hint: cmp.Or(aws.Hint(err), aws.Hint(all))}
	}
	hints := []string{e.Hint}
	for _, w := range why {
		if hint := aws.Hint(w); !isFull(w) && hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	return plugin.Errorf(e.Code, strings.Join(slices.DeleteFunc(hints, func(h string) bool { return h == "" }), "; or: "), "%w", all)
}

// explain adds the CNI error code and the hint, which the container runtime shows.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*plugin.Error](err); ok {
		return err
	}
	return plugin.Errorf(plugin.CodeTryAgain, aws.Hint(err), "%w", err)
}

// provisioned is the error of a node that may not ask EC2 for anything.
func (p *Pool) provisioned() error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	if p.Policy.Choice.Chooses() {
		return plugin.Errorf(plugin.CodeRefused, `ask for what the ENIs of this node have, or set "provision" to "full"`,
			`the node has not what the pod asks for, and "provision" is "none", so it does not ask EC2 for it`)
	}
	return plugin.Errorf(plugin.CodeTryAgain, `add addresses to the ENIs in the launch template, lower --max-pods of the kubelet, or set "provision" to "assign"`,
		`all %d addresses of this node are in use or cooling, and "provision" is "none", so the node does not ask EC2 for more`, s.Free.Len()+s.Leases.Len())
}

// isFull reports whether err means that this ENI or subnet has no room, so that growth may
// try another one. It is false if EC2 may have carried out the call, because growth could
// then get the addresses twice.
func isFull(err error) bool {
	return !aws.MaybeDone(err) && (errors.Is(err, aws.ErrENIFull) || errors.Is(err, aws.ErrSubnetFull) || errors.Is(err, aws.ErrNotFound))
}

// describeInstance returns the state, with the limits of the instance in it.
func (p *Pool) describeInstance(ctx context.Context) (*registry.State, error) {
	s, err := p.Registry.View()
	if err == nil && lease.Unknown(s) {
		err = p.Learn(ctx)
	}
	if err == nil {
		s, err = p.Registry.View()
	}
	if err != nil || s.Instance.ENIs > 0 {
		return s, err
	}
	limits, err := p.describeLimits(ctx, s.Instance.Type)
	if err != nil {
		return nil, fmt.Errorf("limits of %s: %w", s.Instance.Type, err)
	}
	err = p.Registry.Update(ctx, func(now *registry.State) error {
		now.Instance.ENIs, now.Instance.IPv4PerENI, now.Instance.IPv6PerENI = limits.ENIs, limits.IPv4PerENI, limits.IPv6PerENI
		now.Instance.NoPrefixes, now.Instance.Cards = limits.NoPrefixes, several(limits.Cards)
		s = now
		return nil
	})
	return s, err
}

// turn waits until this node may call the action again.
func (p *Pool) turn(ctx context.Context, action string) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	until := s.NotBefore[action]
	text, hint := lease.Throttled(action, until)
	if err = sleep(ctx, time.Until(until), text); err != nil {
		return plugin.Errorf(plugin.CodeTryAgain, hint, "%w", err)
	}
	return nil
}

// sleep waits for d. If the deadline of ctx is earlier, it fails at once. The error says what
// it waited for.
func sleep(ctx context.Context, d time.Duration, what string) error {
	if d <= 0 {
		return nil
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return fmt.Errorf("%s: %w", what, context.DeadlineExceeded)
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
}

// backoff is the wait after the n-th throttled answer in a row: full jitter up to
// 1, 2, 4, 8 seconds, so that nodes which were throttled together do not return together. Up to
// 32 seconds, EC2 would refuse a third of the calls, but the last of 200 nodes would wait for
// half as long again (docs/fleet.md).
func (p *Pool) backoff(n int) time.Duration {
	return p.Cloud.Jitter(min(time.Second<<min(n, 10), registry.MostBackoff))
}

// missing asks EC2 again about an ENI that EC2 has reported as not found. If EC2 repeats
// that, missing forgets the ENI. The first answer may have come too early. If the ENI is new, both may.
func (p *Pool) missing(ctx context.Context, id string) error {
	s, err := p.Registry.View()
	if err != nil || time.Since(s.ENIs[id].Grown) < settled {
		return err
	}
	enis, err := p.describeENIs(ctx, aws.ByID(id))
	if err != nil && !errors.Is(err, aws.ErrNotFound) || len(enis) > 0 {
		return err
	}
	return p.forget(ctx, id)
}

// forget drops an ENI that EC2 does not know any more. The leases on the ENI stay until their
// pods end, because EC2's answer may have come too early.
func (p *Pool) forget(ctx context.Context, id string) error {
	return p.Registry.Change(ctx, func(s *registry.State) { s.Drop(id) })
}

// compare makes the registry agree with EC2 about the addresses of an ENI. Somebody else has
// changed them, or a call of this node whose answer was lost.
func (p *Pool) compare(ctx context.Context, id string) error {
	asked := time.Now()
	enis, err := p.describeENIs(ctx, aws.ByID(id))
	if err != nil {
		return fmt.Errorf("compare %s with EC2: %w", id, err)
	}
	used := p.Used(macs(enis)...)
	return p.Registry.Change(ctx, func(s *registry.State) {
		for _, e := range enis {
			addAll(s, e, used)
		}
		agree(s, enis, asked)
	})
}

// addAll records the addresses and prefixes that EC2 reports for an ENI. It treats those that
// the registry did not know as Learn does: a pod may use them, and EC2's answer may be old.
func addAll(s *registry.State, e aws.ENI, used lease.Used) {
	had := s.ENIs[e.ID]
	if had.Foreign {
		return
	}
	now := time.Now()
	discovery{State: s, used: used, now: now, lag: lagOfEC2}.learnAddrs(e)
	if has := s.ENIs[e.ID]; len(has.Addrs) > len(had.Addrs) {
		has.Grown = now
		s.ENIs[e.ID] = has
	}
}
