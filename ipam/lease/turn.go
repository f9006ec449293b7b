// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
)

// A Source is how an ADD gets addresses when none is free. One process of the node uses it
// at a time, for all ADDs that wait.
type Source struct {
	// Turn is the name of the lock that a process holds while it uses the source. The
	// kernel releases it when the process ends, however it ends.
	Turn string

	// Ask leases addresses to the owner, after it has got some. Why says what Take has
	// lacked: see [IsNone].
	Ask func(ctx context.Context, p *Pool, o Owner, why error) (Allocation, error)
}

// Acquire leases an address of each family to the owner. The same owner again gets the
// same. If none is free, the owner waits for its turn at the source. The process before it
// has asked for all that wait, so mostly the owner finds an address then.
func (p *Pool) Acquire(ctx context.Context, o Owner, from Source) (Allocation, error) {
	a, err := p.Take(ctx, o)
	if !IsNone(err) {
		return a, err
	}
	got, err := p.inTurn(ctx, o, from)
	if got.Fresh = a.Fresh; err != nil {
		err = errors.Join(err, p.GiveUp(ctx, o))
	}
	return got, err
}

// inTurn waits for the owner's turn, until ctx is done, and asks the source if that is
// still necessary and makes sense.
func (p *Pool) inTurn(ctx context.Context, o Owner, from Source) (Allocation, error) {
	unlock, err := p.Registry.Lock(ctx, from.Turn)
	if err != nil {
		return Allocation{}, p.overdue(o, err)
	}
	defer unlock()
	a, none := p.Take(ctx, o)
	if !IsNone(none) {
		return a, none
	}
	if err := p.told(o, none); err != nil {
		return Allocation{}, err
	}
	return from.Ask(ctx, p, o, none)
}
