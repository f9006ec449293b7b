// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Refill is the name of a mark. An ADD leaves the mark when its pool has too few free addresses. Then systemd starts a
// process that fills the pool. A DEL also leaves the mark if a process must detach an ENI for which a pod had asked.
const Refill = "refill"

// markRefill leaves the mark Refill. If that fails, the ADD or the DEL still succeeds.
func (p *Pool) markRefill() {
	if err := p.Registry.Mark(Refill); err != nil {
		slog.Warn("the mark that starts cni-warm.service cannot be written; the pool is refilled only when it is "+
			"empty, and only a collection detaches ENIs for which pods had asked",
			"error", err)
	}
}

// markRelease leaves the mark Release. The mark starts cni-release.service, which releases the address that the pod had
// chosen. If markRelease cannot leave the mark, the DEL still succeeds, and a collection releases the address later.
func (p *Pool) markRelease() {
	if err := p.Registry.Mark(Release); err != nil {
		slog.Warn("the mark that starts cni-release.service cannot be written: the next collection releases the "+
			"address that the pod had chosen",
			"error", err)
	}
}

// Short reports whether the pool has fewer free addresses than its configuration wants. Without IPv4, one free address
// is enough, because an IPv6 prefix has enough addresses.
func (p *Pool) Short(s *registry.State, now time.Time) bool {
	wanted := p.Policy.Wanted(s)
	if wanted == 0 {
		return false
	}
	if p.Policy.scarceFamily() == IPv4 {
		return p.Ready(s, now) < wanted
	}
	_, addrs := Candidates(s, p.Policy, now)
	return len(addrs) == 0
}

// Ready counts the pool's addresses that a pod could get now, in the family whose addresses can become scarce.
func (p *Pool) Ready(s *registry.State, now time.Time) int {
	family := p.Policy.scarceFamily()
	return ready(s, p.Policy.Pool, func(e registry.ENI) int {
		return CountOf(s, e, family, now.Add(-p.Policy.ReuseWait))
	})
}

// scarceFamily returns the family whose addresses can become scarce in the pool. It is IPv4 if the pool's pods have
// IPv4, and otherwise IPv6.
func (policy Policy) scarceFamily() Family {
	if slices.Contains(policy.Families, IPv4) {
		return IPv4
	}
	return IPv6
}

// Wanted returns how many free addresses the pool wants. This is the lower of warm.min and the number of pods that the
// node may still get.
func (policy Policy) Wanted(s *registry.State) int { return min(policy.Warm.Min, policy.More(s)) }

// More returns how many more pods the node may get until it has maxPods pods.
func (policy Policy) More(s *registry.State) int {
	if policy.MaxPods == 0 {
		return math.MaxInt
	}
	pods, family := 0, policy.scarceFamily()
	for a := range s.Leases.Keys() {
		if nl.FamilyOf(a) == family {
			pods++ // a pod has one address of each family
		}
	}
	return max(policy.MaxPods-pods, 0)
}

// Plenty is the number that CountOf adds for a /80, because a /80 has too many addresses to count. No node has so many
// pods.
const Plenty = 1 << 20

// Ready counts the addresses that pods of the pool with this name could get now. It does not count addresses that
// became free after cutoff.
func Ready(s *registry.State, pool string, cutoff time.Time) int {
	return ready(s, pool, func(e registry.ENI) int { return Count(s, e, cutoff) })
}

func ready(s *registry.State, pool string, count func(registry.ENI) int) (n int) {
	for _, e := range s.ENIs {
		if e.Pool == pool && e.Serving && !e.Closed() && !e.Draining {
			n += count(e)
		}
	}
	return n
}

// Count does what Ready does, for the addresses of one ENI. It counts IPv4 addresses, or IPv6 addresses if the ENI has
// no IPv4. If the ENI's link is not on the node, Count returns 0.
func Count(s *registry.State, e registry.ENI, cutoff time.Time) int {
	family := IPv6
	if e.CIDR.IsValid() {
		family = IPv4
	}
	return CountOf(s, e, family, cutoff)
}

// CountOf does what Count does, for one family.
func CountOf(s *registry.State, e registry.ENI, family Family, cutoff time.Time) (n int) {
	if e.NoLink(time.Now()) {
		return 0
	}
	for _, a := range e.Addrs {
		if since, free := s.Free.At(a); free && nl.FamilyOf(a) == family && !since.After(cutoff) && !ToRelease(s, a) {
			n++
		}
	}
	for _, b := range e.Prefixes {
		switch {
		case nl.FamilyOf(b.CIDR.Addr()) != family:
		case family == IPv6:
			n += Plenty
		default:
			for a := b.CIDR.Addr(); b.CIDR.Contains(a); a = a.Next() {
				if isUsable(s, a, cutoff) {
					n++
				}
			}
		}
	}
	return n
}
