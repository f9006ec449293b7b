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

// An Offer is what a scheduler can count on: for how many pods of a pool a node has addresses, or can get them. Of a
// pod with both families, an address of each counts as one.
type Offer struct {
	Leased  int  // by pods
	Free    int  // of the ENIs, for the next pods
	Cooling int  // of the ENIs, and not yet for the next pods
	More    int  // that EC2 can still give, by the limits of the type, the configuration, and what the subnets have
	Bounded bool // the subnets make More lower than the limits do
}

// OfferOf returns what a pool can have of a node. Other pools may take the same slots, and each counts them. except is
// a number of ENIs that stay for pods which ask for ENIs of their own. ENIs that such pods have already count, too.
// Subnets are the subnets of the zone, as EC2 has described them. If they are nil, they have enough addresses.
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

// requested returns how many ENIs pods have for which they have asked.
func requested(s *registry.State) (n int) {
	for _, e := range s.ENIs {
		if _, derived := lease.Derived(e.Pool); derived || e.Origin() == registry.Requested {
			n++
		}
	}
	return n
}

// leased counts the pods that have addresses of the pool's ENIs. A lease that names neither a pod nor a container was
// found in the kernel, so it is a pod's. A lease of a container without a pod is not: nothing schedules it.
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

// usable returns the time since when an address must have been free, so that an ADD takes it: see [lease.Place.Pick].
func (p *Node) usable(s *registry.State, now time.Time) time.Time {
	before := now.Add(-p.Policy.ReuseWait)
	if since, ok := s.Unconfirmed(); ok && p.Policy.Provision != lease.ProvisionNone && since.Before(before) {
		return since
	}
	return before
}

// freeOn returns how many pods the addresses of an ENI serve that are free since before a time.
func (p *Node) freeOn(s *registry.State, e registry.ENI, before time.Time) int {
	least := lease.Plenty
	for _, f := range p.Policy.Families {
		least = min(least, lease.CountOf(s, e, f, before))
	}
	return least
}

// podsLeft returns for how many further pods there are addresses, or can be.
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
		subnet, found := left.widest(s, fit, slices.Contains(p.Policy.Families, lease.IPv4))
		if !found {
			return n
		}
		n += p.podsOnNext(s, subnet, left)
	}
	return n
}

// refuses reports whether this node makes no ENI for now.
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

// fragmented reports whether a subnet has shown that it has no aligned /28. The ENI was to have prefixes, and a
// growth has got single addresses. EC2's descriptions do not say that.
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

// A left has how many IPv4 addresses subnets have left, by their IDs, while they are given away. A subnet that it does
// not have, as all of nil, has plenty.
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

// take takes so many blocks of a size from a subnet, or as many as it has, and returns how many these are. EC2 may have
// fewer aligned blocks than that: it does not say how many.
func (l left) take(subnet string, n, size int) int {
	has, known := l[subnet]
	if !known {
		return n
	}
	got := min(n, has/size)
	l[subnet] = has - got*size
	return got
}

// widest returns the subnet that has the most addresses left for a new ENI, and takes its primary one. An ENI that
// needs no IPv4 takes none. If fit is nil, no subnet is known, and any has room.
func (l left) widest(s *registry.State, fit []aws.Subnet, ipv4 bool) (id string, found bool) {
	if l == nil {
		return "", true
	}
	open := slices.DeleteFunc(slices.Clone(fit), func(n aws.Subnet) bool {
		return ipv4 && l[n.ID] == 0 || call.Standing(s, book.CreateAction, n.ID) != nil
	})
	if len(open) == 0 {
		return "", false
	}
	best := slices.MaxFunc(open, func(a, b aws.Subnet) int { return l[a.ID] - l[b.ID] })
	if ipv4 {
		l[best.ID]--
	}
	return best.ID, true
}
