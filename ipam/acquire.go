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

// Lease does what Acquire does, but the caller of Lease must call Finish afterwards. The owner can use the addresses
// before the call of Finish.
func (p *Pool) Lease(ctx context.Context, o lease.Owner) (lease.Allocation, error) {
	return p.Pool.Acquire(ctx, o, inProcessSource(func(q *lease.Pool) *Pool { return New(*q, p.Cloud) }))
}

// inProcessSource returns a Source that asks EC2 in this process, under the lock "grow".
func inProcessSource(grows func(*lease.Pool) *Pool) lease.Source {
	return lease.Source{Turn: "grow", Ask: func(ctx context.Context, p *lease.Pool, o lease.Owner,
		why error) (lease.Allocation, error) {
		return grows(p).withMode(call.Mode{Defers: true}).getMore(ctx, o, why)
	}}
}

// unpausedRounds is the number of rounds without a pause between them. In a round, a process asks EC2 once. Failed
// rounds do not count. Four rounds are enough to learn the ENIs, finish interrupted calls, assign addresses, and create
// an ENI.
const unpausedRounds = 4

// getMore asks EC2 until the owner has its addresses, or until a further try is useless. The argument lack is an error
// that says what the owner still needs.
func (p *Pool) getMore(ctx context.Context, o lease.Owner, lack error) (lease.Allocation, error) {
	for attempt, well := 0, 0; ; attempt++ {
		if well >= unpausedRounds {
			if err := call.Sleep(ctx, p.Backoff(well-unpausedRounds),
				"EC2 gave addresses, but other pods have taken all of them"); err != nil {
				return lease.Allocation{}, addError(lack, err)
			}
		}
		failed, err := p.askEC2(ctx, o, attempt, lack)
		if err != nil {
			return lease.Allocation{}, addError(lack, err)
		}
		if !failed {
			well++
		}
		var a lease.Allocation
		if a, lack = p.Take(ctx, o); !lease.IsNone(lack) {
			return a, lack
		}
	}
}

// addError returns the error of a failed ADD. The argument lack says what the ADD still needs. The argument cause says
// why this process no longer asks EC2.
func addError(lack, cause error) error {
	return call.Explain(fmt.Errorf("%w: %w", lease.Lacking(lack), cause))
}

// askEC2 asks EC2 once for what the ADD still needs. If this fails, but another try may succeed, askEC2 pauses, and
// returns true and no error. If another try is useless, it returns an error.
func (p *Pool) askEC2(ctx context.Context, o lease.Owner, attempt int, lack error) (failed bool, _ error) {
	askedSince := time.Now()
	enough, err := p.askOnce(ctx, lack)
	if enough {
		return false, nil
	}
	again := isTransient(err, attempt)
	if again || lease.IsHeld(err) {
		askedSince = time.Time{} // this zero time tells recordFailure that a process will ask EC2 again
	}
	if e := p.recordFailure(ctx, o, err, askedSince); e != nil {
		return true, errors.Join(err, e)
	}
	if !again || call.Sleep(ctx, p.Backoff(attempt), "") != nil {
		return true, err
	}
	return true, nil
}

// askOnce tries once to get what an ADD still needs: the peers of the VPC, the existing ENIs, or more addresses. It
// returns true if the registry may now have all that the ADD needs.
func (p *Pool) askOnce(ctx context.Context, lack error) (enough bool, err error) {
	if err := p.OfThisInstance(ctx); err != nil {
		return false, err
	}
	switch {
	case errors.Is(lack, lease.ErrPeers):
		err = p.NeedPeers(ctx)
		return err == nil, err
	case errors.Is(lack, lease.ErrUnknown):
		err = p.Learn(ctx)
	default:
		if err = p.growPool(ctx); err == nil {
			p.RenewPeers(ctx)
		}
	}
	return err == nil || p.HasFree(), err
}

// isTransient reports whether the next try may succeed after err. The metadata service of a starting node may be
// overloaded, but some machines have no metadata service. So aws.ErrNoMetadata is transient only in the first attempts.
func isTransient(err error, attempt int) bool {
	const few = 3
	// If EC2's answer was lost, the next try finds out what EC2 has done. After the deadline, there is no next try.
	lost := aws.MaybeDone(err) && !errors.Is(err, context.DeadlineExceeded)
	return lost || errors.Is(err, aws.ErrTransient) || errors.Is(err, aws.ErrNoMetadata) && attempt < few
}
