// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An Offer is what a scheduler can count on: for how many pods of a pool a node has addresses, or can get them. If a
// pod has both families, one address of each family counts as one.
type Offer struct {
	Leased  int  // addresses that pods have
	Free    int  // addresses that the next pods can have
	Cooling int  // addresses that the next pods cannot have yet
	More    int  // addresses that EC2 can still give, by the limits of the type, the configuration and the subnets
	Bounded bool // More is lower than the limits alone allow, because of the subnets
}

// OfferOf returns what a pool can have of a node. Several pools may use the same free slots: the Offer of each pool
// counts them. The argument except is the number of ENIs that stay available for pods which ask for ENIs of their own.
// The number includes the ENIs that such pods have already. subnets are the subnets of the zone, as EC2 has described
// them. If subnets is nil, OfferOf assumes that they have enough addresses.
func OfferOf(s *registry.State, policy lease.Policy, except int, subnets []aws.Subnet) Offer {
	p := &Node{}
	p.Policy = policy
	except = max(except-requested(s), 0)
	o := Offer{Leased: leased(s, policy)}
	now := time.Now()
	for _, at := range lease.Places(s, policy, now) {
		usable := p.freeOn(s, at.ENI, p.usable(s, now))
		o.Free += usable
		o.Cooling += p.freeOn(s, at.ENI, now) - usable
	}
	have := o.Free + o.Cooling
	o.More = p.podsLeft(s, except, subnets) - have
	o.Bounded = subnets != nil && o.More < p.podsLeft(s, except, nil)-have
	return o
}

// requested returns how many ENIs the node has because pods have asked for them.
func requested(s *registry.State) (n int) {
	for _, e := range s.ENIs {
		if _, derived := lease.Derived(e.Pool); derived || e.Origin() == registry.Requested {
			n++
		}
	}
	return n
}

// leased counts the pods that have addresses of the pool's ENIs. A lease that names neither a pod nor a container was
// found in the kernel, so it counts as the lease of a pod. A lease that names only a container does not count, because
// no scheduler places this container.
func leased(s *registry.State, policy lease.Policy) (n int) {
	scarce := lease.IPv6
	if slices.Contains(policy.Families, lease.IPv4) {
		scarce = lease.IPv4
	}
	for a, l := range s.Leases.All() {
		if nl.FamilyOf(a) == scarce && s.ENIs[l.ENI].Pool == policy.Pool && (l.PodName != "" || l.ContainerID == "") {
			n++
		}
	}
	return n
}

// usable returns a time. An ADD takes an address only if the address was free before this time: see [lease.Place.Pick].
func (p *Node) usable(s *registry.State, now time.Time) time.Time {
	before := now.Add(-p.Policy.ReuseWait)
	if since, ok := p.Policy.Unconfirmed(s); ok && since.Before(before) {
		return since
	}
	return before
}

// freeOn returns how many pods an ENI can serve with the addresses that were free before a time.
func (p *Node) freeOn(s *registry.State, e registry.ENI, before time.Time) int {
	least := lease.Plenty
	for _, f := range p.Policy.Families {
		least = min(least, lease.CountOf(s, e, f, before))
	}
	return least
}

// podsLeft returns for how many further pods the node has addresses, or can get them.
func (p *Node) podsLeft(s *registry.State, except int, subnets []aws.Subnet) (n int) {
	left := leftIn(subnets)
	for _, at := range lease.Places(s, p.Policy, time.Now()) {
		if _, lacks := noCIDR(at, p.Policy.Families); !lacks { // otherwise no pod has all addresses there
			n += p.podsOn(s, at.ID, at.ENI, left)
		}
	}
	if p.refuses(s) {
		return n
	}
	fit, err := p.fitFor(s, subnets)
	if err != nil {
		return n
	}
	for range max(p.further(s)-except, 0) {
		subnet, found := left.widest(s, fit)
		if !found {
			return n
		}
		n += p.podsOnNext(s, subnet, left)
	}
	return n
}

// refuses reports whether this node creates no ENI for now.
func (p *Node) refuses(s *registry.State) bool {
	return !p.MakesENIs() || refused(s) != nil || time.Now().Before(s.Instance.QuotaUntil) ||
		call.Standing(s, book.CreateAction) != nil || call.Standing(s, book.AttachAction) != nil
}

// fitFor returns the subnets in which the pool's next ENI may be.
func (p *Node) fitFor(s *registry.State, subnets []aws.Subnet) ([]aws.Subnet, error) {
	if subnets == nil {
		return nil, nil
	}
	return p.fitting(s, subnets, ENISpec{Tags: p.Policy.SubnetTags, Families: p.Policy.Families})
}

// fragmented reports whether a subnet probably has no aligned /28. A growth wanted prefixes for an ENI in this subnet,
// and got single addresses. EC2's description of a subnet does not show this.
func fragmented(s *registry.State, subnet string) bool {
	for _, e := range s.ENIs {
		if e.Subnet == subnet && e.Managed && singles(e) > 1 {
			return true
		}
	}
	return false
}

// singles counts the IPv4 addresses of an ENI that are not of a prefix, its primary one included.
func singles(e registry.ENI) (n int) {
	for _, a := range e.Addrs {
		if a.Is4() {
			n++
		}
	}
	return n
}

// A left has the number of free IPv4 addresses of each subnet, by the subnet's ID. Its methods subtract the addresses
// that they take. If a subnet is not in the map, or if the map is nil, the subnet counts as having enough addresses.
type left map[string]int

func leftIn(subnets []aws.Subnet) left {
	if subnets == nil {
		return nil
	}
	all := left{}
	for _, n := range subnets {
		all[n.ID] = n.Free
	}
	return all
}

// take takes n blocks of a size from a subnet, or as many as the subnet has, and returns their number. The subnet may
// have fewer aligned blocks, but EC2 does not say how many.
func (l left) take(subnet string, n, size int) int {
	has, known := l[subnet]
	if !known {
		return n
	}
	got := min(n, has/size)
	l[subnet] = has - got*size
	return got
}

// widest returns the subnet that has the most addresses left for a new ENI, and takes the ENI's primary address from
// it. In a subnet with IPv4, each ENI has a primary IPv4 address, also if its pods have only IPv6. If l is nil, no
// subnet is known, and widest assumes that one has room.
func (l left) widest(s *registry.State, fit []aws.Subnet) (id string, found bool) {
	if l == nil {
		return "", true
	}
	open := slices.DeleteFunc(slices.Clone(fit), func(n aws.Subnet) bool {
		return n.CIDR.IsValid() && l[n.ID] == 0 || call.Standing(s, book.CreateAction, n.ID) != nil
	})
	if len(open) == 0 {
		return "", false
	}
	best := slices.MaxFunc(open, func(a, b aws.Subnet) int { return l[a.ID] - l[b.ID] })
	if best.CIDR.IsValid() {
		l[best.ID]--
	}
	return best.ID, true
}
