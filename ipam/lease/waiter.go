// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An ADD that finds no free address becomes a waiter in the registry. It then waits for a lock (Source.Turn), under
// which one process at a time asks EC2 for as many addresses as there are waiters. ADDs that have just given up because
// of throttling also count: the runtime repeats them. So one call is enough for a whole burst of ADDs.

// addWaiter makes the owner a waiter until deadline. It keeps the Since of the owner's earlier entry in Waiters. The
// argument previous is this entry, or zero.
func (p *Pool) addWaiter(s *registry.State, o Owner, previous registry.Waiter, now, deadline time.Time) {
	if previous.Since.IsZero() {
		previous.Since = now
	}
	s.Waiters[o.waiterKey()] = registry.Waiter{Pool: p.Policy.Waits(), Since: previous.Since, Until: deadline}
}

// forgetGivenUp removes from GaveUp the ADD that the owner's ADD repeats. The runtime may repeat an ADD with another
// container ID. The node then does not know which ADD the runtime repeats. In this case, forgetGivenUp removes the ADD
// that was the first to give up in the same pool.
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

// GiveUp removes the owner from the waiters, so that no growth asks EC2 for the owner's address. If the process is
// killed before it calls GiveUp, the owner counts as a waiter until its deadline.
func (p *Pool) GiveUp(ctx context.Context, o Owner) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		removeWaiter(s, o.waiterKey(), time.Now())
	})
}

// removeWaiter removes the waiter with this key. If EC2 has throttled a growth meanwhile, removeWaiter records in
// GaveUp that the ADD has given up. The runtime soon repeats this ADD, and a growth for other ADDs can also get an
// address for this ADD. Without throttling, removeWaiter records nothing: in a full subnet, for example, EC2 would only
// refuse the address.
func removeWaiter(s *registry.State, waiter string, at time.Time) {
	w, waits := s.Waiters[waiter]
	delete(s.Waiters, waiter)
	if waits && throttledAction(s, w.Since) != "" {
		w.Until = at
		s.GaveUp[waiter] = w
	}
}

// Returns is the longest time after which a runtime repeats an ADD that has given up. The kubelet waits 10 to 15
// seconds (kubernetes, pkg/kubelet/kubelet.go, backOffPeriod), and then the runtime makes a sandbox.
const Returns = 30 * time.Second

// addrSep comes before each address in a result of [Policy.Waits].
const addrSep = "="

// Waits returns the name of the group of ADDs for which one process asks EC2. The name has the pool's name, and the
// addresses that the ADD's pod has chosen. An ADD with chosen addresses is in a group of its own, because no other ADD
// asks EC2 for these addresses.
func (policy Policy) Waits() string {
	name := policy.Pool
	for _, a := range policy.Choice.Addrs {
		name += addrSep + a.String()
	}
	return name
}

// Concern returns the owner's key in the registry's map Failures. The key contains the network, because a pool may have
// another policy in another network.
func (p *Pool) Concern(o Owner) string { return o.Network + "/" + p.Policy.Waits() }
