// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

import (
	"context"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// heedConflists records which addresses and ENIs the node must keep, as the conflists of the node say. Each ADD also
// records this for its own network (see lease.Pool.Note), but not for pools that the configuration no longer has.
// Without the conflists, the last ADD would decide for all networks that share its pool. Without the records of ADDs,
// networks of Multus would be missing, because they are in no conflist file.
//
// ADDs also run while the collection waits for EC2. So before each release, the collection calls the method
// heedConflists of the type Collecting.
func (p *Node) heedConflists(ctx context.Context, c *Collecting) error {
	s, err := p.Registry.View()
	if err != nil || !c.heedConflists(s) {
		return err
	}
	return p.Registry.Change(ctx, func(s *registry.State) { c.heedConflists(s) })
}

// heedConflists writes to the state what the conflists want, and reports whether it has changed the state. If the
// conflists are not known, heedConflists changes nothing, and the records of the ADDs stay.
func (c *Collecting) heedConflists(s *registry.State) bool {
	if c.Conflists == nil {
		return false
	}
	noted, retired := recordRequestTags(s, c.Conflists), retirePools(s, c.Conflists)
	return recordPoolWishes(s, c.Conflists) || noted || retired
}

// recordRequestTags records, from the conflists, the tags of ENIs for which pods may ask. ADDs also record such tags
// for their networks. If a network has no pod, recordRequestTags removes what the ADDs of the network have recorded.
func recordRequestTags(s *registry.State, conflists []lease.Policy) (changed bool) {
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

// retirePools records which pools the configuration no longer has. When no pod has an address of such a pool, the pool
// keeps nothing ready, and collections release its free addresses. If a growth needs a slot for a new ENI, the growth
// deletes an empty ENI of the pool.
func retirePools(s *registry.State, conflists []lease.Policy) (changed bool) {
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

// recordPoolWishes records what the conflists want of their pools. A pool that several conflists share gets the largest
// warm.min and the largest warm.max of these conflists. The pool keeps its addresses if one of these conflists has
// skipDeallocation. An ENI serves pods if the interfaceIndex of one of these conflists allows it.
func recordPoolWishes(s *registry.State, conflists []lease.Policy) (changed bool) {
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
		serves, keeps, has := wishesFor(conflists, e)
		unknown := e.Origin() == registry.ThisNode && !e.Serving // no ADD has come since the node lost the registry
		if has && (unknown || e.PoolGone || e.Serving && (e.Passed == serves || e.Keep != keeps)) {
			e.Configure(true, serves, keeps)
			s.ENIs[id], changed = e, true
		}
	}
	return changed
}

// wishesFor returns what the conflists with the ENI's pool want: see recordPoolWishes. If there is no such conflist,
// configured is false.
func wishesFor(conflists []lease.Policy, e registry.ENI) (serves, keeps, configured bool) {
	for _, q := range conflists {
		if q.Pool == lease.Origin(e.Pool) {
			serves, keeps, configured = serves || q.Serves(e), keeps || q.Keep, true
		}
	}
	return serves, keeps, configured
}
