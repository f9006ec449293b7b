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

// Fill gets addresses until the pool has as many free addresses as its configuration wants. Fill returns the number of
// free addresses. If the free addresses are enough for all waiting ADDs, Fill lets these ADDs take their addresses
// before it asks EC2 for more.
func (p *Pool) Fill(ctx context.Context) (free int, err error) {
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return 0, err
	}
	defer func() { unlock() }()
	if err := p.OfThisInstance(ctx); err != nil {
		return 0, err
	}
	if err := p.updateRegistry(ctx); err != nil {
		return 0, err
	}
	p = p.withMode(call.Mode{Ahead: true})
	for had, idle, gave := -1, 0, false; ; {
		var wantsMore, enough bool
		if free, wantsMore, enough, err = p.countFree(ctx); err != nil || !wantsMore {
			return free, err
		}
		if gave = enough && !gave; gave {
			if unlock, err = p.giveWay(ctx, unlock); err != nil {
				return free, err
			}
			continue
		}
		if idle++; free > had {
			had, idle = free, 0
		}
		if idle >= unpausedRounds {
			err = call.Sleep(ctx, p.Backoff(idle-unpausedRounds),
				"EC2 gave addresses, but other pods have taken all of them")
		}
		if err == nil {
			err = p.growPool(ctx)
		}
		if errors.Is(err, call.ErrGivesWay) {
			unlock, err = p.giveWay(ctx, unlock)
		}
		if err != nil {
			return free, err
		}
	}
}

// countFree returns how many addresses are free, and whether the pool wants more. The result enough is true if ADDs
// wait, and each of them can have a free address. If enough is true, Fill should let these ADDs go first. With too few
// addresses, some of these ADDs would ask EC2 themselves, and the pool would need one more call.
func (p *Pool) countFree(ctx context.Context) (free int, wantsMore, enough bool, err error) {
	err = p.Registry.Change(ctx, func(s *registry.State) {
		p.Note(s)
		now := time.Now()
		free, wantsMore = p.Ready(s, now), p.Short(s, now)
		waiting, _, _ := p.CountWaiting(s)
		enough = 0 < waiting && waiting <= free
	})
	return free, wantsMore, enough, err
}

// updateRegistry updates the registry's data about the ENIs, the peers and the links, before Fill decides anything.
func (p *Pool) updateRegistry(ctx context.Context) error {
	s, err := p.Registry.View()
	if err == nil && lease.Unknown(s) {
		err = p.Learn(ctx)
	}
	if err != nil {
		return err
	}
	p.RenewPeers(ctx)
	p.PeersAsked = true
	p.Look(ctx) // if an ENI has its link again, Fill can use the ENI's free addresses
	return nil
}

// giveWay releases the lock "grow", so that the waiting ADDs can take the lock. giveWay takes the lock again when no
// ADD waits any more, or after a second. If giveWay took the lock at once, it could overtake the waiting ADDs. The
// returned function releases the lock that giveWay has taken.
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
