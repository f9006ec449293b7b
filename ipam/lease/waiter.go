// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An ADD that finds no free address becomes a waiter in the registry. After that, the ADD waits for a lock
// (Source.Turn). Under this lock, one process at a time gets addresses from EC2. The process that gets the lock asks
// EC2 for as many addresses as there are waiters. It also counts each ADD that has just given up because of throttling,
// because the runtime will repeat that ADD. So one call is enough for a whole burst of ADDs, if all of them are waiters
// before the process asks.

// addWaiter makes the owner a waiter until deadline. The argument previous is the owner's earlier entry in Waiters, or
// zero. The new entry keeps the Since of the earlier entry.
func (p *Pool) addWaiter(s *registry.State, o Owner, previous registry.Waiter, now, deadline time.Time) {
	if previous.Since.IsZero() {
		previous.Since = now
	}
	s.Waiters[o.waiterKey()] = registry.Waiter{Pool: p.Policy.Waits(), Since: previous.Since, Until: deadline}
}

// forgetGivenUp removes an ADD from GaveUp if the owner's ADD repeats it. GaveUp has the ADDs that have given up, and
// that the runtime will repeat. But a repeated ADD may have another container ID. In this case, the node does not know
// which ADD is repeated. So among the ADDs of the same pool, forgetGivenUp removes the one that gave up earliest.
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

// GiveUp removes the owner from the waiters, so that no growth asks EC2 for the owner's address. If a process is killed
// before it calls GiveUp, the owner counts as a waiter until the deadline Until.
func (p *Pool) GiveUp(ctx context.Context, o Owner) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		removeWaiter(s, o.waiterKey(), time.Now())
	})
}

// removeWaiter removes the waiter with this key. If EC2 has throttled a growth while the ADD waited, removeWaiter
// records in GaveUp that the ADD has given up. The runtime soon repeats the ADD. So a growth for other ADDs also gets
// an address for this ADD. Without this record, the repeated ADD would find no free address, and would need another
// call, which EC2 throttles. Without throttling, removeWaiter records nothing: in a full subnet, for example, EC2 would
// only refuse more addresses.
func removeWaiter(s *registry.State, waiter string, at time.Time) {
	w, waits := s.Waiters[waiter]
	delete(s.Waiters, waiter)
	if waits && throttledAction(s, w.Since) != "" {
		w.Until = at
		s.GaveUp[waiter] = w
	}
}

// Returns is the longest time between two events: an ADD gives up, and the runtime repeats this ADD. The kubelet waits
// 10 to 15 seconds (kubernetes, pkg/kubelet/kubelet.go, backOffPeriod). After this wait, the runtime makes a sandbox,
// which also takes time.
const Returns = 30 * time.Second

// addrSep is before each address in the names that Waits returns.
const addrSep = "="

// Waits returns the name of the group to which a waiting ADD belongs. One process asks EC2 on behalf of the whole
// group. The name consists of the pool's name and the addresses that the ADD's pod has chosen. An ADD that waits for a
// chosen address is in a group of its own, because no other ADD asks EC2 for this address.
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
