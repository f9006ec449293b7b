// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An ADD that finds no free address becomes a waiter in the registry before it waits for its
// turn. The process that has the turn asks EC2 for as many addresses as there are waiters. So
// one call is enough for all ADDs of a burst that are in the registry by then.

// wait makes the owner a waiter. An owner that waits already keeps its first time.
func (p *Pool) wait(s *registry.State, o Owner, was registry.Waiter, now, until time.Time) {
	if was.Since.IsZero() {
		was.Since = now
	}
	s.Waiters[o.waiter()] = registry.Waiter{Pool: p.Policy.Waits(), Since: was.Since, Until: until}
}

// GiveUp removes the owner from the waiters, so that no process asks EC2 for its address. If
// a process was killed, its waiter counts until its deadline.
func (p *Pool) GiveUp(ctx context.Context, o Owner) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) { delete(s.Waiters, o.waiter()) })
}

// ofAddr is between the pool and the address in the name of what an ADD waits for.
const ofAddr = "="

// Waits is where an ADD waits: for addresses of its pool, or for the address that its pod has
// chosen, which nobody else asks EC2 for.
func (policy Policy) Waits() string {
	name := policy.Pool
	for _, a := range policy.Choice.Addrs {
		name += ofAddr + a.String()
	}
	return name
}

// Concern is the key of failures. It has the network, because a pool may have another policy
// in another network.
func (p *Pool) Concern(o Owner) string { return o.Network + "/" + p.Policy.Waits() }
