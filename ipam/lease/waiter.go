// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An ADD that finds no free address is a waiter in the registry before it waits for its
// turn. Whoever has the turn asks EC2 for as many addresses as there are waiters. So what it
// asks for is right if all ADDs of a burst are in the registry before it asks.

// wait makes the owner a waiter. One that waits already stays as old as it is.
func (p *Pool) wait(s *registry.State, o Owner, was registry.Waiter, now, until time.Time) {
	if was.Since.IsZero() {
		was.Since = now
	}
	s.Waiters[o.Key.String()] = registry.Waiter{Pool: p.Policy.Pool, Since: was.Since, Until: until}
}

// GiveUp removes the owner from the waiters. Otherwise somebody asks EC2 for what nobody
// needs any more. A waiter whose process was killed counts until its deadline.
func (p *Pool) GiveUp(ctx context.Context, o Owner) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) { delete(s.Waiters, o.Key.String()) })
}

// Concern is the key of failures: a pool may have another policy in another network.
func (p *Pool) Concern(o Owner) string { return o.Network + "/" + p.Policy.Pool }
