// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The functions of this file compute how many pods a node can serve with addresses, now and in the future. A function
// without the argument rooms, or with nil for rooms, assumes that the subnets have room, and an aligned /28 for each
// prefix.

// Launched returns the state of a new instance with these limits. The instance's only ENI is its boot ENI. The ENI's
// first address of each family belongs to the node itself.
func Launched(l aws.Limits, families []lease.Family) *registry.State {
	boot := registry.ENI{Boot: true, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	if slices.Contains(families, lease.IPv6) {
		boot.Addrs = append(boot.Addrs, netip.MustParseAddr("2001:db8::1"))
	}
	s := &registry.State{ENIs: map[string]registry.ENI{"boot": boot}}
	known.Limit(&s.Instance, l)
	return s
}

// Pods returns how many pods the instance can certainly serve, however the pods are distributed over the pools. With
// several pools, this is less than the number of addresses, because a pool takes a whole ENI for its first pod. A pool
// that can never have an address does not count. The argument keptENIs is the number of ENIs that are kept for pods
// that ask for ENIs of their own.
func Pods(s *registry.State, policies []lease.Policy, keptENIs int) int {
	var all []share
	for _, policy := range policies {
		if one := shareOf(s, policy, keptENIs); one.attached+one.enis*one.podsPerENI > 0 {
			all = append(all, one)
		}
	}
	if len(all) == 0 {
		return 0
	}
	least := math.MaxInt
	for i := range all {
		least = min(least, fewestPods(all[i], slices.Delete(slices.Clone(all), i, i+1)))
	}
	return least
}

// A share says which part of an instance's ENIs and addresses a pool can have.
type share struct {
	attached   int // pods that the attached ENIs serve
	enis       int // further ENIs that the pool can get while no other pool takes them
	podsPerENI int // pods that such an ENI serves
	warm       int // free addresses that the pool keeps ready
}

// shareOf returns the share of the policy's pool.
func shareOf(s *registry.State, policy lease.Policy, keptENIs int) share {
	p := &Node{}
	p.Policy = policy
	one := share{warm: policy.Warm.Min}
	for _, at := range lease.Places(s, policy, time.Now()) {
		one.attached += p.podsOn(s, at.ID, at.ENI, nil)
	}
	if !p.MakesENIs() {
		return one
	}
	one.enis = max(p.furtherENIs(s)-keptENIs, 0)
	one.podsPerENI = p.podsOnNext(s, "", nil)
	return one
}

// podsOnNext returns how many pods a new ENI in the subnet can serve. The argument rooms has the free addresses of each
// subnet. podsOnNext subtracts the addresses of these pods from the argument rooms.
func (p *Node) podsOnNext(s *registry.State, subnet string, rooms subnetRoom) int {
	const id = "next"
	s.ENIs[id] = registry.ENI{Index: max(p.Policy.MinIndex, 1), Subnet: subnet}
	book.AddAddrs(s, id, []netip.Addr{netip.MustParseAddr("192.0.2.2")}, time.Time{}) // the primary address
	defer s.Drop(id)
	return p.podsOn(s, id, s.ENIs[id], rooms)
}

// podsOn returns how many pods an ENI can serve with its free addresses, and with the addresses for which it has room.
func (p *Node) podsOn(s *registry.State, id string, e registry.ENI, rooms subnetRoom) int {
	least := math.MaxInt
	for _, f := range p.Policy.Families {
		n := lease.CountOf(s, e, f, time.Now())
		if p.Policy.Provision != lease.ProvisionNone && call.StandingRefusal(s, book.AssignAction(f), id) == nil {
			n += p.podsInRoom(s, f, max(book.Room(s, e, f), 0), e.Subnet, rooms)
		}
		least = min(least, n)
	}
	return least
}

// podsInRoom returns how many more pods an ENI can serve if it gets an address or a prefix in each free place. The
// argument places is the number of free places. podsInRoom subtracts the addresses of these pods from the free
// addresses in the argument rooms.
func (p *Node) podsInRoom(s *registry.State, f lease.Family, places int, subnet string, rooms subnetRoom) int {
	switch {
	case f == lease.IPv6 && p.usesPrefixes(s, f):
		return min(places, 1) * lease.Plenty
	case f == lease.IPv6:
		return places
	case !p.usesPrefixes(s, f) || rooms != nil && isFragmented(s, subnet):
		return rooms.takeBlocks(subnet, places, 1)
	}
	blocks := rooms.takeBlocks(subnet, places, book.BlockSize)
	return blocks*book.BlockSize + rooms.takeBlocks(subnet, places-blocks, 1)
}

// furtherENIs returns how many more ENIs a growth could attach.
func (p *Node) furtherENIs(s *registry.State) int {
	then := &registry.State{Instance: s.Instance, ENIs: maps.Clone(s.ENIs)}
	for n := 0; ; n++ {
		if p.fullError(then) != nil {
			return n
		}
		at, _ := slotsOf(then, p.Policy.MinIndex, nil).nextFree() // fullError has found a free slot
		then.ENIs[fmt.Sprint(n)] = registry.ENI{Card: at.Card, Index: at.Index}
	}
}

// fewestPods returns the smallest number of pods with which one pool of a node can lack a free address. The other pools
// may have taken ENIs by then. The argument starved is the share of the pool without addresses.
func fewestPods(starved share, others []share) int {
	const never = math.MaxInt / 2
	pods := slices.Repeat([]int{never}, starved.enis+1) // pods[n]: fewest pods with which other pools take n ENIs
	pods[0] = 0
	for _, other := range others {
		then := slices.Clone(pods)
		for taken := range pods {
			for n := 1; n <= other.enis && taken+n <= starved.enis; n++ {
				then[taken+n] = min(then[taken+n], pods[taken]+other.leastPodsTaking(n))
			}
		}
		pods = then
	}
	least := never
	for taken, n := range pods {
		least = min(least, n+starved.attached+(starved.enis-taken)*starved.podsPerENI)
	}
	return least
}

// leastPodsTaking returns the smallest number of pods with which a pool takes further ENIs. The argument enis is the
// number of these ENIs.
func (one share) leastPodsTaking(enis int) int {
	return max(one.attached+(enis-1)*one.podsPerENI+1-one.warm, 0)
}
