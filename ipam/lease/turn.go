// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
	"time"
)

// A Source gets addresses for an ADD when no address is free. Only one process of the node at a time uses a Source, for
// all waiting ADDs.
type Source struct {
	// Turn is the name of the lock that a process holds while it uses the source. The kernel
	// releases the lock when the process ends for any reason.
	Turn string

	// Ask gets addresses, and leases some of them to the owner. The error why is the error of
	// Take: see [IsNone].
	Ask func(ctx context.Context, p *Pool, o Owner, why error) (Allocation, error)

	// Hands says that a parent process waits for the answer, and has the owner's turn: see [Program]. If another node
	// has the address that the pod has chosen, this process fails at once, and its parent waits.
	Hands bool
}

// Acquire leases an address of each family to the owner. If the owner has a lease, it gets the same addresses again. If
// no address is free, the owner waits for its turn at the source. Usually, the process that had the turn before has
// asked EC2 for all waiting ADDs. Then the owner finds an address.
func (p *Pool) Acquire(ctx context.Context, o Owner, from Source) (Allocation, error) {
	a, err := p.Take(ctx, o)
	if !IsNone(err) {
		return a, err
	}
	got, err := p.askWhileHeld(ctx, o, from)
	if got.Fresh, got.Waited = a.Fresh, true; err != nil && !(from.Hands && IsHeld(err)) {
		err = errors.Join(err, p.GiveUp(ctx, o))
	}
	return got, err
}

// askInTurn waits for the owner's turn, until ctx is done. Then inTurn asks the source, if no address is free and EC2 has
// not just refused another process.
func (p *Pool) askInTurn(ctx context.Context, o Owner, from Source) (Allocation, error) {
	unlock, err := p.Registry.Lock(ctx, from.Turn)
	if err != nil {
		return p.lastTry(ctx, o, err)
	}
	defer unlock()
	a, none := p.Take(ctx, o)
	if !IsNone(none) {
		return a, none
	}
	if err := p.recentFailure(o, none); err != nil {
		return Allocation{}, err
	}
	return from.Ask(ctx, p, o, none)
}

// lastTry is for an owner whose time has ended before its turn. While the process that has the turn waits for EC2, a DEL
// may have made an address free. In this case, the owner gets the address. Otherwise atLast does not change the owner's
// entry among the waiters.
func (p *Pool) lastTry(ctx context.Context, o Owner, ended error) (Allocation, error) {
	overdue := p.overdueError(o, ended)
	if !errors.Is(ended, context.DeadlineExceeded) {
		return Allocation{}, overdue // this process must end
	}
	s, err := p.Registry.View()
	if err != nil {
		return Allocation{}, overdue
	}
	if eni, _ := Candidates(s, p.Policy, time.Now()); p.reasonToAsk(s, eni) != nil {
		return Allocation{}, overdue
	}
	a, err := p.takeAtLast(ctx, o)
	if err != nil {
		return Allocation{}, overdue
	}
	return a, nil
}

// takeAtLast does what Take does, for an owner whose time may have ended. It waits at most a second for the registry.
func (p *Pool) takeAtLast(ctx context.Context, o Owner) (Allocation, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return p.Take(ctx, o)
}
