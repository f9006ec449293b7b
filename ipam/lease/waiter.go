// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An ADD that finds no free address becomes a waiter in the registry. Then the ADD waits for the lock under which one
// process at a time gets addresses from EC2 (Source.Turn). The process that gets the lock asks EC2 for an address for
// each waiter. It also asks for one for each ADD that has just given up because of throttling, because the runtime
// will repeat that ADD. So one call is enough for all ADDs of a burst that are in the registry when the process asks.

// addWaiter makes the owner a waiter. If the owner is a waiter already, the time at which it began to wait stays the same.
func (p *Pool) addWaiter(s *registry.State, o Owner, was registry.Waiter, now, until time.Time) {
	if was.Since.IsZero() {
		was.Since = now
	}
	s.Waiters[o.waiterKey()] = registry.Waiter{Pool: p.Policy.Waits(), Since: was.Since, Until: until}
}

// forgetGivenUp removes from GaveUp the ADD that the owner's ADD repeats. A runtime may repeat an ADD under another
// container ID. Then the node does not know which ADD the owner's ADD repeats. So returned removes the ADD of the pool
// that gave up first.
func (p *Pool) forgetGivenUp(s *registry.State, o Owner) {
	if len(s.GaveUp) == 0 {
		return // as in nearly every ADD
	}
	gone := o.waiterKey()
	if _, same := s.GaveUp[gone]; !same {
		for key, w := range s.GaveUp {
			if first, found := s.GaveUp[gone]; w.Pool == p.Policy.Waits() && (!found || w.Until.Before(first.Until)) {
				gone = key
			}
		}
	}
	delete(s.GaveUp, gone)
}

// GiveUp removes the owner from the waiters, so that no growth asks EC2 only for its address. The waiter of a killed
// process counts until the waiter's deadline.
func (p *Pool) GiveUp(ctx context.Context, o Owner) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) { removeWaiter(s, o.waiterKey(), time.Now()) })
}

// removeWaiter removes a waiter. If EC2 has throttled a growth while the ADD waited, givesUp records that the ADD has given
// up. The runtime repeats the ADD soon. So a growth for other ADDs also gets an address for this ADD. Otherwise the
// repeated ADD would find no address, and would need another call that EC2 throttles. Without throttling, there is no
// record: in a full subnet, for example, EC2 would only refuse more addresses.
func removeWaiter(s *registry.State, waiter string, at time.Time) {
	w, waits := s.Waiters[waiter]
	delete(s.Waiters, waiter)
	if waits && throttledAction(s, w.Since) != "" {
		w.Until = at
		s.GaveUp[waiter] = w
	}
}

// Returns is the longest time until a runtime repeats an ADD that has given up. The kubelet waits 10 to 15 seconds
// (kubernetes, pkg/kubelet/kubelet.go, backOffPeriod), and then the runtime makes a sandbox.
const Returns = 30 * time.Second

// addrSep separates the pool from the addresses in the names that Waits returns.
const addrSep = "="

// Waits returns a name for what an ADD waits for: the addresses of its pool, or the addresses that its pod has chosen.
// A chosen address has a name of its own, because no other ADD asks EC2 for it.
func (policy Policy) Waits() string {
	name := policy.Pool
	for _, a := range policy.Choice.Addrs {
		name += addrSep + a.String()
	}
	return name
}

// Concern returns the key of the owner's failures in the registry. The key contains the network, because a pool may
// have another policy in another network.
func (p *Pool) Concern(o Owner) string { return o.Network + "/" + p.Policy.Waits() }
