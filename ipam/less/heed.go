// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

import (
	"context"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// heed records what the conflists of the node want to keep. Each ADD records what its own network wants: see
// lease.Pool.Note. The records of ADDs alone are not enough: networks that share a pool may differ, and the last ADD
// would decide. Also, no ADD comes for a pool that the configuration no longer has. The conflists alone are also not
// enough, because Multus has networks that are in no file.
//
// The registry has all ENIs before heed is called. While the collection waits for EC2, ADDs write their own records. So
// the collection heeds the conflists again before each release.
func (p *Node) heed(ctx context.Context, c *Collecting) error {
	s, err := p.Registry.View()
	if err != nil || !c.heed(s) {
		return err
	}
	return p.Registry.Change(ctx, func(s *registry.State) { c.heed(s) })
}

// heed writes to the state what the conflists want, and reports whether it has changed the state. If the conflists are
// not known, the records of ADDs count.
func (c *Collecting) heed(s *registry.State) bool {
	if c.Conflists == nil {
		return false
	}
	noted, retired := requested(s, c.Conflists), retire(s, c.Conflists)
	return agreed(s, c.Conflists) || noted || retired
}

// requested records the tags of the ENIs for which pods may ask by the conflists. It removes the tags of a network that
// no conflist has, and that has no pod.
func requested(s *registry.State, conflists []lease.Policy) (changed bool) {
	before, leased := s.OnRequest, map[string]bool{"": true}
	if len(before) > 0 {
		for _, l := range s.Leases.All() {
			leased[l.Network] = true
		}
	}
	s.OnRequest = slices.DeleteFunc(slices.Clone(before), func(r registry.OnRequest) bool { return !leased[r.Network] })
	lease.Common(conflists...).Heed(s, "")
	return !slices.EqualFunc(before, s.OnRequest, registry.OnRequest.Equal)
}

// retire is for pools that the configuration no longer has. When no pod has an address of such a pool, the pool keeps
// nothing, and collections release its free addresses. A growth deletes an empty ENI of the pool if another ENI needs
// its slot.
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
		changed = changed || kept || e.Keep || !e.Serving || !e.PoolGone
		delete(s.Warm, e.Pool)
		e.Configure(true, !e.Passed, false)
		e.PoolGone = true
		s.ENIs[id] = e
	}
	return changed
}

// agreed records what the conflists want of their pools. If several conflists share a pool, their largest warm.min and
// warm.max count. If one of these conflists keeps the pool's addresses, the node keeps them. The device index of an ENI
// counts as one for pods if one of these conflists says so.
func agreed(s *registry.State, conflists []lease.Policy) (changed bool) {
	warm := map[string]registry.Warm{}
	for _, q := range conflists {
		w := warm[q.Pool]
		warm[q.Pool] = registry.Warm{Min: max(w.Min, q.Warm.Min), Max: max(w.Max, q.Warm.Max)}
	}
	for pool, w := range warm {
		if s.Warm[pool] != w {
			s.Warm[pool], changed = w, true
		}
	}
	for id, e := range s.ENIs {
		serves, keeps, has := wishes(conflists, e)
		unknown := e.Origin() == registry.ThisNode && !e.Serving // no ADD has come since the node lost the registry
		if has && (unknown || e.PoolGone || e.Serving && (e.Passed == serves || e.Keep != keeps)) {
			e.Configure(true, serves, keeps)
			s.ENIs[id], changed = e, true
		}
	}
	return changed
}

// wishes returns what conflists say of an ENI. has is true if a conflist has the ENI's pool. serves is true if the ENI
// serves the pods of such a conflist. keeps is true if such a conflist has skipDeallocation.
func wishes(conflists []lease.Policy, e registry.ENI) (serves, keeps, has bool) {
	for _, q := range conflists {
		if q.Pool == lease.Origin(e.Pool) {
			serves, keeps, has = serves || q.Serves(e), keeps || q.Keep, true
		}
	}
	return serves, keeps, has
}
