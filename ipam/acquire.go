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

// Lease does what Acquire does, but leaves the call of Finish to its caller. The owner can use the addresses before
// that call.
func (p *Pool) Lease(ctx context.Context, o lease.Owner) (lease.Allocation, error) {
	return p.Pool.Acquire(ctx, o, source(func(q *lease.Pool) *Pool { return New(*q, p.Cloud) }))
}

// source returns a Source that asks EC2 in this process. The process holds the lock "grow" while it asks. Each process
// that asks EC2 for more addresses holds this lock.
func source(grows func(*lease.Pool) *Pool) lease.Source {
	return lease.Source{Turn: "grow", Ask: func(ctx context.Context, p *lease.Pool, o lease.Owner,
		why error) (lease.Allocation, error) {
		return grows(p).as(call.Mode{Defers: true}).getMore(ctx, o, why)
	}}
}

// rounds is how often one process asks EC2 without a pause while no call fails. In these rounds, the process asks for
// four things: the existing ENIs, the outcome of interrupted calls, addresses, and a new ENI. If no address is free
// after these rounds, other pods have taken the new addresses, or EC2 will never give an address.
const rounds = 4

// getMore asks EC2 until the owner has its addresses, or until a further try is useless. The error why says what the
// owner lacks.
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

// lacking returns the error of an ADD that has failed. The error none says what the ADD lacks. The error why says why
// EC2 has not given it.
func lacking(none, why error) error {
	return call.Explain(fmt.Errorf("%w: %w", lease.Lacking(none), why))
}

// ask asks EC2 for more addresses. If the registry knows no ENI yet, ask asks which ENIs there are. If EC2 gives
// nothing, but the next call of ask may succeed, ask pauses, and returns true without an error. If a further call is
// useless, ask returns an error. Each call of ask first finds out what EC2 has done in the call before.
func (p *Pool) ask(ctx context.Context, o lease.Owner, attempt int, why error) (failed bool, _ error) {
	began := time.Now()
	enough, err := p.askFor(ctx, why)
	if enough {
		return false, nil
	}
	again := passing(err, attempt)
	if again || lease.IsHeld(err) { // a process will ask EC2 again: see fail
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

// askFor asks for what an ADD lacks: the peers of the VPC, the ENIs, or addresses. enough is true if the registry may
// now have what the ADD lacks.
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

// passing reports whether the next try may succeed after err. If the metadata service does not answer, it may be
// overloaded while the node starts. But the machine may also have no metadata service. So for this error, passing
// returns true only in the first few attempts.
func passing(err error, attempt int) bool {
	const few = 3
	lost := aws.MaybeDone(err) && !errors.Is(err, context.DeadlineExceeded) // the next try finds out what EC2 has done
	return lost || errors.Is(err, aws.ErrTransient) || errors.Is(err, aws.ErrNoMetadata) && attempt < few
}
