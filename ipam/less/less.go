// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package less releases what the node does not need: addresses, prefixes and ENIs. It ends leases of pods that are
// gone. EC2 may give a released address to another node at once. So package less proves that no pod has the address,
// and removes the address from the registry, before it calls EC2.
package less

import (
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Node releases what this node does not need.
type Node struct{ known.Node }

// A Collection says what a run of registry-gc may release.
type Collection struct {
	FreeAfter time.Duration  // release addresses that have been free for this time
	Max       int            // if 0 or more: unassign at most this many addresses, and delete no ENI
	Conflists []lease.Policy // the policies of the node's conflists; nil: not known

	// ReuseWait returns how long the addresses of a pool cool. A collection does not release a cooling address, because
	// EC2 may give it to another pod at once. If ReuseWait is nil, only FreeAfter counts.
	ReuseWait func(pool string) time.Duration
}

// wait returns how long the addresses of the pool cool, or 0 if this is not known.
func (c Collection) wait(pool string) time.Duration {
	if c.ReuseWait == nil {
		return 0
	}
	return c.ReuseWait(pool)
}

// leastFree returns how long an address of the pool must be free after its last lease, before a collection releases it.
func (c Collection) leastFree(pool string) time.Duration { return max(c.FreeAfter, c.wait(pool)) }

// spareReady returns how many more ready addresses the pool has than it wants to keep. A cooling address is not ready:
// if it counted, the collection would release the addresses that the next pods need.
func (c Collection) spareReady(s *registry.State, pool string, now time.Time) int {
	return lease.Ready(s, pool, now.Add(-c.wait(pool))) - s.Warm[pool].Left()
}

// A Report says what a collection has released. The Report is also correct if the collection has failed later.
type Report struct {
	Ended      []netip.Addr // addresses whose leases have ended because the pods were gone without a DEL
	Unassigned []netip.Addr
	Deleted    []string       // ENIs
	Detached   []string       // ENIs for which pods had asked
	Returned   []netip.Prefix // delegated prefixes that were unassigned

	// Tidied is true if the collection has removed objects of the node that serve all pods, or all routed pods. A pod
	// may have started at that moment, so the caller must repair the node.
	Tidied bool
}

// A Collecting is the state of a running collection.
type Collecting struct {
	Collection
	Report
	Used lease.Used // what the kernel shows
	// empty ENIs that EC2 has not described or detached, or about which the collection has not asked EC2: the
	// collection leaves their addresses alone
	kept []string

	// stopped is true after a call that unassigns, if the function stops has returned true for the call's error. Before
	// each further such call, releaseFrom would remove free addresses from the registry. So the collection makes none.
	stopped bool
}

// stops does what [aws.Stops] does, and also returns true if the outcome of a call is unknown.
func stops(err error) bool { return aws.Stops(err) || aws.MaybeDone(err) }
