// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Retire is for pools that the configuration no longer has, by their names. No ADD will say any more what such a pool keeps. So
// once no pod has an address of it, it keeps nothing, and collections release what is free of it.
func (p *Pool) Retire(ctx context.Context, configured map[string]bool) error {
	s, err := p.Registry.View()
	if err != nil || !retire(s, configured) {
		return err
	}
	return p.Registry.Change(ctx, func(s *registry.State) { retire(s, configured) })
}

// retire changes the state, and reports whether it has.
func retire(s *registry.State, configured map[string]bool) (changed bool) {
	leased := map[string]bool{} // by pool
	for _, l := range s.Leases.All() {
		leased[s.ENIs[l.ENI].Pool] = true
	}
	for id, e := range s.ENIs {
		_, derived := lease.Derived(e.Pool) // it keeps nothing ready anyway
		if derived || configured[e.Pool] || leased[e.Pool] || e.Foreign || e.OnRequest {
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
