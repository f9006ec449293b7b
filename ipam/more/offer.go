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

// An Offer tells a scheduler how many pods of a pool can have addresses on a node. The IPv4 address and the IPv6
// address of a pod count as one address.
type Offer struct {
	Leased  int  // addresses that pods have
	Free    int  // addresses that the next pods can have
	Cooling int  // addresses that the next pods cannot have yet
	More    int  // addresses that EC2 can still give, within the limits of the type, the configuration and the subnets
	Bounded bool // without the limits of the subnets, More would be higher
}

// OfferOf returns the Offer of a pool on a node. The Offer of each pool includes all free slots, although several pools
// may use them. The argument keptENIs is the number of ENIs that are kept for pods with ENIs of their own. This number
// includes the ENIs that such pods already have. If subnets is nil, the subnets count as large enough.
func OfferOf(s *registry.State, policy lease.Policy, keptENIs int, subnets []aws.Subnet) Offer {
	p := &Node{}
	p.Policy = policy
	keptENIs = max(keptENIs-requestedENIs(s), 0)
	o := Offer{Leased: leasedPods(s, policy)}
	now := time.Now()
	for _, at := range lease.Places(s, policy, now) {
		usable := p.podsFreeOn(s, at.ENI, p.usableBefore(s, now))
		o.Free += usable
		o.Cooling += p.podsFreeOn(s, at.ENI, now) - usable
	}
	have := o.Free + o.Cooling
	o.More = p.podsLeft(s, keptENIs, subnets) - have
	o.Bounded = subnets != nil && o.More < p.podsLeft(s, keptENIs, nil)-have
	return o
}

// requestedENIs returns how many ENIs the node has because pods have asked for them.
func requestedENIs(s *registry.State) (n int) {
	for _, e := range s.ENIs {
		if _, derived := lease.Derived(e.Pool); derived || e.Origin() == registry.Requested {
			n++
		}
	}
	return n
}

// leasedPods counts the pods that have addresses of the pool's ENIs. A lease that names neither a pod nor a container
// comes from the kernel, and counts. A lease that names only a container does not count, because no scheduler places
// this container.
func leasedPods(s *registry.State, policy lease.Policy) (n int) {
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

// usableBefore returns a time. An ADD takes an address only if the address became free before this time: see
// [lease.Place.Pick].
func (p *Node) usableBefore(s *registry.State, now time.Time) time.Time {
	before := now.Add(-p.Policy.ReuseWait)
	if since, ok := p.Policy.Unconfirmed(s); ok && since.Before(before) {
		return since
	}
	return before
}

// podsFreeOn returns how many pods an ENI can serve with addresses that were free at the time freedBefore.
func (p *Node) podsFreeOn(s *registry.State, e registry.ENI, freedBefore time.Time) int {
	least := lease.Plenty
	for _, f := range p.Policy.Families {
		least = min(least, lease.CountOf(s, e, f, freedBefore))
	}
	return least
}

// podsLeft returns how many more pods the node can serve with addresses that it has or can get.
func (p *Node) podsLeft(s *registry.State, keptENIs int, subnets []aws.Subnet) (n int) {
	rooms := roomOf(subnets)
	for _, at := range lease.Places(s, p.Policy, time.Now()) {
		if _, lacks := noCIDR(at, p.Policy.Families); !lacks { // an ENI that lacks a CIDR serves no pod
			n += p.podsOn(s, at.ID, at.ENI, rooms)
		}
	}
	if p.createsNoENI(s) {
		return n
	}
	fit, err := p.suitableForNext(s, subnets)
	if err != nil {
		return n
	}
	for range max(p.furtherENIs(s)-keptENIs, 0) {
		subnet, found := rooms.takeWidest(s, fit)
		if !found {
			return n
		}
		n += p.podsOnNext(s, subnet, rooms)
	}
	return n
}

// createsNoENI reports whether this node cannot create an ENI now.
func (p *Node) createsNoENI(s *registry.State) bool {
	return !p.MakesENIs() || refusalError(s) != nil || time.Now().Before(s.Instance.QuotaUntil) ||
		call.StandingRefusal(s, book.CreateAction) != nil || call.StandingRefusal(s, book.AttachAction) != nil
}

// suitableForNext returns the subnets in which the pool's next ENI may be.
func (p *Node) suitableForNext(s *registry.State, subnets []aws.Subnet) ([]aws.Subnet, error) {
	if subnets == nil {
		return nil, nil
	}
	return p.suitableSubnets(s, subnets, ENISpec{Tags: p.Policy.SubnetTags, Families: p.Policy.Families})
}

// isFragmented reports whether a subnet probably has no aligned /28. Usually, an ENI of a pool with prefixes has single
// addresses, besides the primary one, only if EC2 has refused a prefix.
func isFragmented(s *registry.State, subnet string) bool {
	for _, e := range s.ENIs {
		if e.Subnet == subnet && e.Managed && singleAddrs(e) > 1 {
			return true
		}
	}
	return false
}

// singleAddrs counts the IPv4 addresses of an ENI that are in no prefix, including the primary address.
func singleAddrs(e registry.ENI) (n int) {
	for _, a := range e.Addrs {
		if a.Is4() {
			n++
		}
	}
	return n
}

// A subnetRoom has the number of free IPv4 addresses of each subnet, by ID. Its methods subtract the addresses that
// they take. A subnet that is not in the map counts as large enough.
type subnetRoom map[string]int

func roomOf(subnets []aws.Subnet) subnetRoom {
	if subnets == nil {
		return nil
	}
	all := subnetRoom{}
	for _, n := range subnets {
		all[n.ID] = n.Free
	}
	return all
}

// takeBlocks subtracts up to n blocks of blockSize addresses from a subnet, and returns the number of blocks. It may
// count too many, because EC2 does not say how many free blocks are aligned.
func (l subnetRoom) takeBlocks(subnet string, n, blockSize int) int {
	has, known := l[subnet]
	if !known {
		return n
	}
	got := min(n, has/blockSize)
	l[subnet] = has - got*blockSize
	return got
}

// takeWidest returns the subnet with the most free addresses for a new ENI, and subtracts the ENI's primary address. In
// a subnet with IPv4, each ENI has a primary address, even if its pods have only IPv6. If the map is nil, takeWidest
// assumes that a subnet has room.
func (l subnetRoom) takeWidest(s *registry.State, fit []aws.Subnet) (id string, found bool) {
	if l == nil {
		return "", true
	}
	open := slices.DeleteFunc(slices.Clone(fit), func(n aws.Subnet) bool {
		return n.CIDR.IsValid() && l[n.ID] == 0 || call.StandingRefusal(s, book.CreateAction, n.ID) != nil
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
