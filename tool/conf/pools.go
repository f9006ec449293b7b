// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Whole returns the policies of the pools of all networks. Whole returns nil if there is no network, if a network has a
// mistake, or if Load cannot parse a file. Then no command knows which pools there are.
func (c *Conflists) Whole() []lease.Policy {
	if _, err := c.All(); err != nil || c.Unread() != nil {
		return nil
	}
	return c.policies
}

// Common is what a collection needs of all networks. Common is empty if no network is ours. With a mistake there is
// none, because no command knows what a collection may do.
func (c *Conflists) Common() (lease.Policy, error) {
	all, err := c.All()
	if Absent(err) {
		return lease.Policy{}, nil
	}
	if err != nil {
		return lease.Policy{}, err
	}
	var first []lease.Policy
	for _, l := range all {
		first = append(first, l.IPAM.Policies()[0])
	}
	return lease.Common(first...), nil
}

// Wanted returns how many free IPv4 addresses the pools want, as growth reckons them. A pool that no configuration has
// any more wants none. Without a configuration, it is the warm.min that the last ADD has read.
func (c *Conflists) Wanted(s *registry.State) map[string]int {
	noted, wanted := map[string]int{}, map[string]int{}
	for pool, w := range s.Warm {
		noted[pool] = w.Min
	}
	all := c.Whole()
	if len(all) == 0 {
		return noted
	}
	for _, p := range all {
		if _, known := noted[p.Pool]; known && slices.Contains(p.Families, lease.IPv4) {
			wanted[p.Pool] = max(wanted[p.Pool], p.Wanted(s))
		}
	}
	return wanted
}

// Pools returns a policy for each pool, to fill the pool. Networks may share a pool. Then it is the policy of the first
// one, with the largest numbers of free addresses, as collections keep them.
func (c *Conflists) Pools() (pools []lease.Policy) {
	for _, p := range c.policies {
		i := slices.IndexFunc(pools, func(q lease.Policy) bool { return q.Pool == p.Pool })
		if i < 0 {
			pools = append(pools, p)
			continue
		}
		w := &pools[i].Warm
		w.Min, w.Max = max(w.Min, p.Warm.Min), max(w.Max, p.Warm.Max)
	}
	return pools
}

// Routed returns the CIDRs to which pods of some network have routes by their ENI, whatever metadata shows.
func (c *Conflists) Routed() (all []netip.Prefix) {
	for _, p := range c.policies {
		all = append(all, p.Routes...)
	}
	return all
}

// PoliciesOf returns the policies of the pools of one network.
func (c *Conflists) PoliciesOf(network string) []lease.Policy {
	ours := c.Ours()
	i := slices.IndexFunc(ours, func(l List) bool { return l.Name == network })
	if i < 0 || ours[i].IPAM == nil {
		return nil
	}
	return ours[i].IPAM.Policies()
}

// LowestIndex returns the lowest interfaceIndex, and 0 without any. No pod of the node gets an address of an ENI below.
func (c *Conflists) LowestIndex() int {
	all := c.Whole()
	if len(all) == 0 {
		return 0
	}
	return slices.MinFunc(all, func(a, b lease.Policy) int { return cmp.Compare(a.MinIndex, b.MinIndex) }).MinIndex
}

// MostENIs returns how many ENIs the instance may have, by its type and by maxENIs of a network. 0: the registry does
// not know yet.
func (c *Conflists) MostENIs(s *registry.State) int {
	most := 0
	for _, p := range c.Whole() {
		most = max(most, cmp.Or(p.MaxENIs, s.Instance.ENIs))
	}
	return min(cmp.Or(most, s.Instance.ENIs), s.Instance.ENIs)
}

// Misfit returns why pods get no addresses of an ENI that others have attached. Misfit returns "" if pods of a network
// get these addresses, or if there is no configuration.
func (c *Conflists) Misfit(e registry.ENI) (why string) {
	for _, p := range c.policies {
		if p.Pool != e.Pool {
			continue
		}
		misfit := p.Misfit(e)
		if misfit == "" {
			return ""
		}
		why = cmp.Or(why, misfit)
	}
	return why
}

// ReuseWait returns how long the addresses of a pool cool: the longest, if networks share the pool. A pool that is
// derived from another has its time. If no configuration has the pool, it is the default.
func (c *Conflists) ReuseWait(pool string) time.Duration {
	if from, ok := lease.Derived(pool); ok {
		pool = from
	}
	wait, known := time.Duration(0), false
	for _, p := range c.policies {
		if p.Pool == pool || PoolName(p.Pool) == pool { // pools that are derived from it have this name
			wait, known = max(wait, p.ReuseWait), true
		}
	}
	if !known {
		return defaultReuse
	}
	return wait
}
