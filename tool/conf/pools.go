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

// MostAddTimeout is the largest value that the key addTimeout may have.
const MostAddTimeout = registry.MostWait

// Whole returns the policies of the pools of all networks. It returns nil if a command cannot know all pools. This is
// so if there is no network, if a network has a mistake, or if Load cannot parse a file.
func (c *Conflists) Whole() []lease.Policy {
	if _, err := c.All(); err != nil || c.Unread() != nil {
		return nil
	}
	return c.policies
}

// Common returns one policy for commands that work for all networks at once, such as registry-gc (see [lease.Common]).
// If no network is ours, the policy is empty. If a network has a mistake, Common returns an error, because the command
// cannot know what it may change in EC2.
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

// Wanted returns how many free IPv4 addresses each pool should have. The keys are the pools' names in the registry. It
// leaves out pools that are no longer configured. If c does not know all pools (see Whole), Wanted returns the warm.min
// that the last ADD has written into the registry.
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

// Pools returns, for each pool, the policy for filling the pool. If networks share a pool, Pools takes the policy of
// the first network, and the largest warm.min and warm.max of all these networks. The command registry-gc keeps free
// addresses by the same values.
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

// Routed returns the CIDRs of the key routeToCidrs of all networks. Pods have routes to these CIDRs through their ENI,
// even if metadata does not show the CIDRs.
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

// LowestIndex returns the lowest interfaceIndex of all pools. Pods get no addresses of ENIs with a lower device index.
// It returns the error of [Conflists.All], if there is one.
func (c *Conflists) LowestIndex() (int, error) {
	if _, err := c.All(); err != nil {
		return 0, err
	}
	return slices.MinFunc(c.policies, func(a, b lease.Policy) int {
		return cmp.Compare(a.MinIndex, b.MinIndex)
	}).MinIndex, nil
}

// MostENIs returns how many ENIs the instance may have, by its type and by the networks' maxENIs. A network whose
// provision is not "full" can have only the attached ENIs. If the registry does not know the type's limits yet, the
// result is 0.
func (c *Conflists) MostENIs(s *registry.State) int {
	most := 0
	for _, p := range c.Whole() {
		n := cmp.Or(p.MaxENIs, s.Instance.ENIs)
		if p.Provision != lease.ProvisionFull {
			n = min(n, s.Attached())
		}
		most = max(most, n)
	}
	return min(cmp.Or(most, s.Instance.ENIs), s.Instance.ENIs)
}

// Assigns reports whether the node asks EC2 for addresses. The result is false only if all networks have the provision
// "none". If c does not know all networks, the result is true.
func (c *Conflists) Assigns() bool {
	all := c.Whole()
	return len(all) == 0 ||
		slices.ContainsFunc(all, func(p lease.Policy) bool { return p.Provision != lease.ProvisionNone })
}

// Misfit returns why no pod gets an address of the ENI e, which an operator or another program has attached. It returns
// "" if pods get addresses of e, or if there is no configuration.
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

// Unclear reports whether the tags of the ENI's subnet are the only reason why e serves no pods. The result is true if
// this holds in at least one network that has the ENI's pool.
func (c *Conflists) Unclear(e registry.ENI) bool {
	return slices.ContainsFunc(c.policies, func(p lease.Policy) bool { return p.Pool == e.Pool && p.Unclear(e) })
}

// ReuseWait returns how long the addresses of a pool cool. If networks share the pool, their longest time counts. If no
// configuration has the pool, the result is the default. A derived pool has the time of the pool from which it is
// derived.
func (c *Conflists) ReuseWait(pool string) time.Duration {
	if from, ok := lease.Derived(pool); ok {
		pool = from
	}
	wait, known := time.Duration(0), false
	for _, p := range c.policies {
		// If pool is derived from the default pool, Derived has returned "default", which is not the name in policies.
		if p.Pool == pool || PoolName(p.Pool) == pool {
			wait, known = max(wait, p.ReuseWait), true
		}
	}
	if !known {
		return defaultReuse
	}
	return wait
}
