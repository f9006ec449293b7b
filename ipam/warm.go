// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Fill gets addresses until the pool has as many free ones as its configuration wants. Fill returns the number of free
// addresses. If the free addresses are enough for all waiting ADDs, these ADDs have their turn before Fill asks for
// more.
func (p *Pool) Fill(ctx context.Context) (has int, err error) {
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return 0, err
	}
	defer func() { unlock() }()
	if err := p.OfThisInstance(ctx); err != nil {
		return 0, err
	}
	if err := p.begin(ctx); err != nil {
		return 0, err
	}
	p = p.as(call.Mode{Ahead: true})
	for had, idle, gave := -1, 0, false; ; {
		var short, enough bool
		if has, short, enough, err = p.count(ctx); err != nil || !short {
			return has, err
		}
		if gave = enough && !gave; gave {
			if unlock, err = p.giveWay(ctx, unlock); err != nil {
				return has, err
			}
			continue
		}
		if idle++; has > had {
			had, idle = has, 0
		}
		if idle >= rounds {
			err = call.Sleep(ctx, p.Backoff(idle-rounds),
				"EC2 gave addresses, but other pods have taken all of them")
		}
		if err == nil {
			err = p.grow(ctx)
		}
		if errors.Is(err, call.ErrGivesWay) {
			unlock, err = p.giveWay(ctx, unlock)
		}
		if err != nil {
			return has, err
		}
	}
}

// count returns how many addresses are free (has), and whether the pool wants more (short). It also returns whether the
// free addresses are enough for all waiting ADDs (enough). enough is false if no ADD waits. If the free addresses are
// too few for all waiting ADDs, Fill asks EC2 first. Otherwise some of these ADDs would ask EC2 themselves, and the
// pool would need one call more.
func (p *Pool) count(ctx context.Context) (has int, short, enough bool, err error) {
	err = p.Registry.Change(ctx, func(s *registry.State) {
		p.Note(s)
		now := time.Now()
		has, short = p.Ready(s, now), p.Short(s, now)
		waiting, _, _ := p.Waiting(s)
		enough = 0 < waiting && waiting <= has
	})
	return has, short, enough, err
}

// begin updates the registry's data about the ENIs, the peers and the links, before Fill decides anything.
func (p *Pool) begin(ctx context.Context) error {
	s, err := p.Registry.View()
	if err == nil && lease.Unknown(s) {
		err = p.Learn(ctx)
	}
	if err != nil {
		return err
	}
	p.RenewPeers(ctx)
	p.PeersAsked = true
	p.Look(ctx) // otherwise Fill asks for addresses although an ENI has its link again, with free addresses
	return nil
}

// giveWay releases the lock "grow", and takes it again when no ADD waits any more, or after a second. It returns the
// function that releases the lock. A process that takes the lock again at once may overtake the waiters.
func (p *Pool) giveWay(ctx context.Context, unlock func()) (func(), error) {
	const most, look = time.Second, 10 * time.Millisecond
	unlock()
	for end := time.Now().Add(most); time.Now().Before(end); {
		if s, err := p.Registry.View(); err != nil || !book.AnyWaits(s, book.AnyPool) ||
			call.Sleep(ctx, look, "") != nil {
			break
		}
	}
	again, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return func() {}, err
	}
	return again, nil
}
