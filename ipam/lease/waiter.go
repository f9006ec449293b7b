// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An ADD that finds no free address becomes a waiter in the registry before it waits for its
// turn. The process that has the turn asks EC2 for an address for each waiter, and for each ADD
// that has just given up. So one call is enough for all ADDs of a burst that are in the registry
// by then.

// wait makes the owner a waiter. An owner that waits already keeps its first time.
func (p *Pool) wait(s *registry.State, o Owner, was registry.Waiter, now, until time.Time) {
	if was.Since.IsZero() {
		was.Since = now
	}
	s.Waiters[o.waiter()] = registry.Waiter{Pool: p.Policy.Waits(), Since: was.Since, Until: until}
}

// returned removes the ADD that has given up and that the owner's repeats. A runtime may repeat an ADD under another
// ID. The node cannot tell then which one it is, so returned removes the first of the pool.
func (p *Pool) returned(s *registry.State, o Owner) {
	if len(s.GaveUp) == 0 {
		return // as in nearly every ADD
	}
	gone := o.waiter()
	if _, same := s.GaveUp[gone]; !same {
		for key, w := range s.GaveUp {
			if first, found := s.GaveUp[gone]; w.Pool == p.Policy.Waits() && (!found || w.Until.Before(first.Until)) {
				gone = key
			}
		}
	}
	delete(s.GaveUp, gone)
}

// GiveUp removes the owner from the waiters, so that no growth asks EC2 only for its address. If
// a process was killed, its waiter counts until its deadline.
func (p *Pool) GiveUp(ctx context.Context, o Owner) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) { givesUp(s, o.waiter(), time.Now()) })
}

// givesUp removes a waiter. If EC2 has throttled meanwhile, the registry knows for some time that this ADD has given
// up. Its runtime repeats it soon. So a growth that is for others is for this ADD, too. Otherwise it would find no
// address, and need another call that EC2 throttles. In a full subnet, asking for more would only be refused.
func givesUp(s *registry.State, waiter string, at time.Time) {
	w, waits := s.Waiters[waiter]
	delete(s.Waiters, waiter)
	if waits && throttled(s, w.Since) != "" {
		w.Until = at
		s.GaveUp[waiter] = w
	}
}

// Returns is how soon a runtime repeats an ADD that has given up. The kubelet waits 10 to 15 seconds (kubernetes,
// pkg/kubelet/kubelet.go, backOffPeriod), and then makes a sandbox.
const Returns = 30 * time.Second

// ofAddr separates the pool from the address in a name. The name stands for the thing that an ADD waits for.
const ofAddr = "="

// Waits is where an ADD waits: for addresses of its pool, or for the address that its pod has chosen. No other ADD asks
// EC2 for that address.
func (policy Policy) Waits() string {
	name := policy.Pool
	for _, a := range policy.Choice.Addrs {
		name += ofAddr + a.String()
	}
	return name
}

// Concern is the key of failures. The key contains the network, because a pool may have another policy in another
// network.
func (p *Pool) Concern(o Owner) string { return o.Network + "/" + p.Policy.Waits() }
