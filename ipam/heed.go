// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Heed notes for a collection what the conflists of the node want. Each ADD notes what its own network wants to keep, and that does
// not suffice. Networks that share a pool may differ, and Multus has some that no file has: the last ADD would decide. And no ADD
// comes for a pool that the configuration no longer has.
func (p *Pool) Heed(ctx context.Context, conflists []lease.Policy) error {
	s, err := p.Registry.View()
	if err != nil || !heed(s, conflists) {
		return err
	}
	return p.Registry.Change(ctx, func(s *registry.State) { heed(s, conflists) })
}

// heed changes the state, and reports whether it has.
func heed(s *registry.State, conflists []lease.Policy) bool {
	retired := retire(s, conflists)
	return agreed(s, conflists) || retired
}

// retire is for pools that the configuration no longer has. Once no pod has an address of such a pool, it keeps nothing, and
// collections release what is free of it.
func retire(s *registry.State, conflists []lease.Policy) (changed bool) {
	configured := map[string]bool{}
	for _, q := range conflists {
		configured[q.Pool] = true
	}
	leased := map[string]bool{} // by pool
	for _, l := range s.Leases.All() {
		leased[s.ENIs[l.ENI].Pool] = true
	}
	for id, e := range s.ENIs {
		if configured[lease.Origin(e.Pool)] || leased[e.Pool] || e.Foreign || e.OnRequest {
			continue
		}
		_, kept := s.Warm[e.Pool]
		changed = changed || kept || e.Keep || !e.Serving
		delete(s.Warm, e.Pool)
		e.Serving, e.Keep = true, false
		s.ENIs[id] = e
	}
	return changed
}

// agreed is for pools that the configuration has. Of conflists that share one, the larger numbers count.
func agreed(s *registry.State, conflists []lease.Policy) (changed bool) {
	warm := map[string]registry.Warm{}
	for _, q := range conflists {
		w := warm[q.Pool]
		warm[q.Pool] = registry.Warm{Min: max(w.Min, q.Warm.Min), Max: max(w.Max, q.Warm.Max)}
	}
	for pool, w := range warm {
		if noted, known := s.Warm[pool]; known && noted != w {
			s.Warm[pool], changed = w, true
		}
	}
	for id, e := range s.ENIs {
		serves := func(q lease.Policy) bool { return q.Pool == e.Pool && q.Serves(e) }
		if _, has := warm[e.Pool]; has && e.Serving && e.Passed == slices.ContainsFunc(conflists, serves) {
			e.Passed = !e.Passed
			s.ENIs[id], changed = e, true
		}
	}
	return changed
}
