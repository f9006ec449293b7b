// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// Acquire leases an address of each family to the owner: see [lease.Pool.Acquire].
func (p *Pool) Acquire(ctx context.Context, o lease.Owner) (lease.Allocation, error) {
	a, err := p.Lease(ctx, o)
	p.Finish(ctx)
	return a, err
}

// Lease is Acquire without its end, Finish: the owner can use the addresses before that.
func (p *Pool) Lease(ctx context.Context, o lease.Owner) (lease.Allocation, error) {
	return p.Pool.Acquire(ctx, o, source(func(q *lease.Pool) *Pool { return New(*q, p.Cloud) }))
}

// source asks EC2 in this process. The process holds the lock "grow" meanwhile, as all
// processes do that ask EC2 for more.
func source(grows func(*lease.Pool) *Pool) lease.Source {
	return lease.Source{Turn: "grow", Ask: func(ctx context.Context, p *lease.Pool, o lease.Owner,
		why error) (lease.Allocation, error) {
		return grows(p).as(call.Mode{Defers: true}).getMore(ctx, o, why)
	}}
}

// rounds is how often one process asks EC2 without a pause while nothing fails. It asks which ENIs exist, how
// interrupted calls have ended, for addresses, and for a new ENI. If there is still no address then, others have taken
// all of them, or none will ever come.
const rounds = 4

// getMore asks EC2 until the owner has its addresses, or until there is no point in asking
// again. The error why says what the owner lacks.
func (p *Pool) getMore(ctx context.Context, o lease.Owner, why error) (lease.Allocation, error) {
	for attempt, well := 0, 0; ; attempt++ {
		if well >= rounds {
			if err := call.Sleep(ctx, p.Backoff(well-rounds),
				"EC2 gave addresses, but other pods have taken all of them"); err != nil {
				return lease.Allocation{}, lacking(why, err)
			}
		}
		failed, err := p.ask(ctx, o, attempt, why)
		if err != nil {
			return lease.Allocation{}, lacking(why, err)
		}
		if !failed {
			well++
		}
		var a lease.Allocation
		if a, why = p.Take(ctx, o); !lease.IsNone(why) {
			return a, why
		}
	}
}

// lacking returns the error of an ADD that did not get what it lacks.
func lacking(none, why error) error {
	return call.Explain(fmt.Errorf("%w: %w", lease.Lacking(none), why))
}

// ask asks EC2 for more addresses. If nothing is known of the ENIs yet, it asks which there are. If that fails, but may
// succeed later, ask waits for a pause and reports failed. If another try makes no sense, it returns an error. Each try
// first finds out what EC2 has done in the try before.
func (p *Pool) ask(ctx context.Context, o lease.Owner, attempt int, why error) (failed bool, _ error) {
	began := time.Now()
	enough, err := p.askFor(ctx, why)
	if enough {
		return false, nil
	}
	again := passing(err, attempt)
	if again || lease.IsHeld(err) { // it is asked again
		began = time.Time{}
	}
	if e := p.fail(ctx, o, err, began); e != nil {
		return true, errors.Join(err, e)
	}
	if !again || call.Sleep(ctx, p.Backoff(attempt), "") != nil {
		return true, err
	}
	return true, nil
}

// askFor asks for what an ADD lacks, and reports whether it may be there now.
func (p *Pool) askFor(ctx context.Context, why error) (enough bool, err error) {
	if err := p.OfThisInstance(ctx); err != nil {
		return false, err
	}
	switch {
	case errors.Is(why, lease.ErrPeers):
		err = p.NeedPeers(ctx)
		return err == nil, err
	case errors.Is(why, lease.ErrUnknown):
		err = p.Learn(ctx)
	default:
		if err = p.grow(ctx); err == nil {
			p.RenewPeers(ctx)
		}
	}
	return err == nil || p.Found(), err
}

// passing reports whether err may pass. If the metadata service does not answer, it may be
// overloaded, as the node is when it starts. Or there is none.
func passing(err error, attempt int) bool {
	const few = 3
	lost := aws.MaybeDone(err) && !errors.Is(err, context.DeadlineExceeded) // the next try looks at what EC2 has done
	return lost || errors.Is(err, aws.ErrTransient) || errors.Is(err, aws.ErrNoMetadata) && attempt < few
}
