// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// A Pool is the addresses of a node: who has which, and how to get more.
type Pool struct {
	lease.Pool
	Cloud *aws.Client
}

// Open opens the pool of this node.
func Open(policy lease.Policy) (*Pool, error) {
	p, err := lease.Open(policy)
	if err != nil {
		return nil, err
	}
	return &Pool{*p, aws.New(aws.Options{})}, nil
}

// Acquire leases an address of each family to the owner. The same owner again gets
// the same. If none is free, one process of the node asks EC2 for all that wait, in
// the order in which they came, and the others find its answer.
func (p *Pool) Acquire(ctx context.Context, o lease.Owner) (lease.Allocation, error) {
	a, err := p.Take(ctx, o)
	if !lease.IsNone(err) {
		return a, err
	}
	if a, err = p.queue(ctx, o); err != nil {
		return lease.Allocation{}, errors.Join(err, p.GiveUp(ctx, o))
	}
	return a, nil
}

// queue waits until the owner is the one that may ask EC2, unless another has got an
// address for it by then, and asks.
func (p *Pool) queue(ctx context.Context, o lease.Owner) (lease.Allocation, error) {
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return lease.Allocation{}, p.overdue(o, err)
	}
	defer unlock()
	for attempt := 0; ; attempt++ {
		a, err := p.Take(ctx, o)
		if !lease.IsNone(err) {
			return a, err
		}
		if attempt == 0 {
			if err := p.told(o); err != nil {
				return lease.Allocation{}, err
			}
		}
		if err = p.ask(ctx, o, attempt, errors.Is(err, lease.ErrUnknown)); err != nil {
			return lease.Allocation{}, explain(fmt.Errorf("%w: %w", lease.ErrNone, err))
		}
	}
}

// ask asks EC2 for more addresses, or, if nothing is known yet, which there are. It
// fails when it makes no sense to try again: each try begins by looking at what EC2 has
// made of the one before.
func (p *Pool) ask(ctx context.Context, o lease.Owner, attempt int, unknown bool) error {
	began, more := time.Now(), p.grow
	if unknown {
		more = p.Learn
	}
	err := more(ctx)
	if err == nil || p.found() {
		return nil
	}
	again := passing(err, attempt)
	if again {
		began = time.Time{}
	}
	if e := p.fail(ctx, o, err, began); e != nil {
		return errors.Join(err, e)
	}
	if !again || sleep(ctx, backoff(attempt), "") != nil {
		return err
	}
	return nil
}

// found tells whether there is an address: a growth that failed may have brought to an
// end what an earlier one had begun.
func (p *Pool) found() bool {
	s, err := p.Registry.View()
	if err != nil {
		return false
	}
	_, addrs := lease.Candidates(s, p.Policy, time.Now())
	return len(addrs) > 0
}

// passing tells whether err is likely to pass. A metadata service that does not
// answer may be overloaded, as the whole node is when it starts, or not be there.
func passing(err error, attempt int) bool {
	const few = 3
	return errors.Is(err, aws.ErrTransient) || errors.Is(err, aws.ErrNoMetadata) && attempt < few
}
