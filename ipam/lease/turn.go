// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
	"time"
)

// A Source gets addresses from EC2 for an ADD that finds no free address. Only one process of the node uses a Source at
// a time, on behalf of all waiting ADDs.
type Source struct {
	// Turn is the name of the lock that a process holds while it uses the source. The kernel releases the lock when the
	// process ends for any reason.
	Turn string

	// Ask gets addresses, and leases an address of each family to the owner. The argument takeErr is the error that
	// Take has returned: see [IsNone].
	Ask func(ctx context.Context, p *Pool, o Owner, takeErr error) (Allocation, error)

	// Hands is true if this process hands its lease to a parent process. This process is then a GrowProgram, and the
	// parent is an ADD: see [Program]. If another node has the chosen address, the GrowProgram fails at once, and the
	// parent waits and tries again.
	Hands bool
}

// Acquire leases an address of each family to the owner, or returns the addresses that the owner has already. If no
// address is free, the owner waits for its turn: the lock of the source. The owner then usually finds a free address,
// because an earlier holder of the lock has asked EC2 on behalf of all waiting ADDs.
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

// askInTurn waits for the owner's turn, and then takes a free address. If no address is free, askInTurn asks the
// source. But if EC2 has just refused another process, askInTurn returns that process's error: see recentFailure.
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

// lastTry is for an owner that has had no turn before its deadline, because of waitErr. If a DEL has freed an address
// meanwhile, lastTry leases it to the owner. In all other cases, lastTry leaves the owner's entry in Waiters as it is.
func (p *Pool) lastTry(ctx context.Context, o Owner, waitErr error) (Allocation, error) {
	overdue := p.overdueError(o, waitErr)
	if !errors.Is(waitErr, context.DeadlineExceeded) {
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

// takeAtLast does what Take does, even if ctx is done. It waits at most a second for the registry.
func (p *Pool) takeAtLast(ctx context.Context, o Owner) (Allocation, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return p.Take(ctx, o)
}
