// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// grow asks EC2 once for the addresses that all waiting ADDs of this node need, or
// fails. Its caller holds the lock "grow". It tries what costs least first: prefixes or
// addresses on an ENI with room, the fullest first, then a new ENI.
func (p *Pool) grow(ctx context.Context) error {
	if p.Policy.Provision == lease.ProvisionNone {
		return p.provisioned()
	}
	sure, err := p.resume(ctx, p.reattach)
	if err != nil {
		return explain(err)
	}
	if sure {
		return nil // what was in doubt may do
	}
	s, err := p.describeInstance(ctx)
	if err != nil {
		return explain(err)
	}
	var why []error
	for _, at := range lease.Places(s, p.Policy) {
		err := p.fill(ctx, s, at)
		if err == nil {
			return nil
		}
		if !isFull(err) {
			return explain(err)
		}
		why = append(why, err)
	}
	if p.Policy.Provision == lease.ProvisionAssign {
		why = append(why, errors.New(`"provision" is "assign": no new ENI is made`))
		return explain(errors.Join(why...))
	}
	if err := p.addENI(ctx, s); err != nil {
		return explain(errors.Join(append(why, err)...))
	}
	return nil
}

// explain gives an error the code and the hint that the runtime shows.
func explain(err error) error {
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
	return plugin.Errorf(plugin.CodeTryAgain, `give the launch template more addresses, lower --max-pods, or allow "provision": "assign"`,
		`all of the %d addresses that this node is provisioned with are in use or cooling, and "provision" is "none"`, s.Free.Len()+s.Leases.Len())
}

// isFull tells whether err says that there, but perhaps not elsewhere, is no room.
func isFull(err error) bool {
	return errors.Is(err, aws.ErrENIFull) || errors.Is(err, aws.ErrSubnetFull) || errors.Is(err, aws.ErrNotFound)
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
	limits, err := p.Cloud.Limits(ctx, s.Instance.Type)
	if err != nil {
		return nil, fmt.Errorf("limits of %s: %w", s.Instance.Type, err)
	}
	err = p.Registry.Update(ctx, func(now *registry.State) error {
		now.Instance.ENIs, now.Instance.IPv4PerENI, now.Instance.IPv6PerENI = limits.ENIs, limits.IPv4PerENI, limits.IPv6PerENI
		now.Instance.Cards = several(limits.Cards)
		s = now
		return nil
	})
	return s, err
}

// call makes a changing call to EC2: in its turn, with the intent on disk before
// it, and what came of it recorded in the same update that removes the intent. While
// EC2 throttles, the whole node waits, until ctx is done. What the call asks for is
// decided by the state in which its intent is written, the last one before it.
func (p *Pool) call(ctx context.Context, action string, i registry.Intent, do func(*registry.State) (record func(*registry.State), err error)) error {
	token := newToken()
	i.Since = time.Now()
	var throttled error // why there was another attempt
	for attempt := 0; ; attempt++ {
		if err := p.turn(ctx, action); err != nil {
			return errors.Join(throttled, err)
		}
		var s *registry.State
		if err := p.Registry.Change(ctx, func(now *registry.State) { now.Intents[token], s = i, now }); err != nil {
			return errors.Join(throttled, err)
		}
		record, err := do(s)
		again := time.Now().Add(backoff(attempt))
		e := p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
			switch {
			case err == nil:
				record(s)
			case errors.Is(err, aws.ErrThrottled):
				s.NotBefore[action] = again
			case !answered(err):
				return // who knows what EC2 has done: the intent stays
			}
			delete(s.Intents, token)
		})
		if !errors.Is(err, aws.ErrThrottled) || e != nil {
			if ctx.Err() != nil {
				err = errors.Join(throttled, err)
			}
			return errors.Join(err, e)
		}
		throttled = err
	}
}

// answered tells an error that is EC2's word from one that leaves open what EC2 has done.
func answered(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return ok && e.Code != "" && !errors.Is(err, aws.ErrTransient)
}

// turn waits until this node may call the action again.
func (p *Pool) turn(ctx context.Context, action string) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	until := s.NotBefore[action]
	if err = sleep(ctx, time.Until(until), throttledUntil(action, until)); err != nil {
		return plugin.Errorf(plugin.CodeTryAgain, hintThrottled(action), "%w", err)
	}
	return nil
}

// throttledUntil says what the node waits for, and hintThrottled what to do about it.
func throttledUntil(action string, until time.Time) string {
	return fmt.Sprintf("%s: %v: this node waits until %s", action, aws.ErrThrottled, until.Format(time.RFC3339))
}

func hintThrottled(action string) string {
	return aws.Hint(&aws.Error{Action: action, Code: "RequestLimitExceeded"})
}

// sleep waits for d, if that is not over already. If ctx would be done before, it fails at once and says what for.
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
// 1, 2, 4, 8 seconds, so that nodes which were throttled together do not return together.
func backoff(n int) time.Duration {
	return time.Duration(rand.Int64N(int64(time.Second) << min(n, 3)))
}

// missing forgets an ENI that EC2 has said it does not know, if it says so again: it
// may have spoken too soon.
func (p *Pool) missing(ctx context.Context, id string) error {
	enis, err := p.Cloud.DescribeENIs(ctx, aws.ByID(id))
	if err != nil && !errors.Is(err, aws.ErrNotFound) || len(enis) > 0 {
		return err
	}
	return p.forget(ctx, id)
}

// forget drops an ENI that EC2 does not know any more. What is leased on it stays
// leased until its pods end: EC2 may also have spoken too soon.
func (p *Pool) forget(ctx context.Context, id string) error {
	return p.Registry.Change(ctx, func(s *registry.State) { s.Drop(id) })
}

// compare makes the registry agree with EC2 about the addresses of an ENI, which
// somebody else, or a call whose answer was lost, has changed.
func (p *Pool) compare(ctx context.Context, id string) error {
	enis, err := p.Cloud.DescribeENIs(ctx, aws.ByID(id))
	if err != nil {
		return fmt.Errorf("compare %s with EC2: %w", id, err)
	}
	used := p.Used()
	return p.Registry.Change(ctx, func(s *registry.State) {
		for _, e := range enis {
			addAll(s, e, used)
		}
	})
}

// addAll records what EC2 says that an ENI has. The registry did not know of it, so it
// is treated like what Learn finds: pods may use it, and EC2 may lag behind itself.
func addAll(s *registry.State, e aws.ENI, used lease.Used) {
	if !s.ENIs[e.ID].Foreign {
		lesson{State: s, used: used, now: time.Now()}.learnAddrs(e)
	}
}
