// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A registry that is new knows what metadata and EC2 have just said. Both may be behind:
// metadata by minutes, EC2 by seconds. What was unassigned right before the registry was
// lost, or by a collection that had begun by then, may still be listed, and an ENI that
// is new may not be. So a new registry has intents to look at once for what was begun,
// and again when EC2 has settled. Until then the addresses that nobody uses are in
// doubt, and no ADD takes them.
//
// What this cannot know: a node on which no pod has an address takes what it finds at
// once, as it must when it boots. If it has not booted, but its registry was lost within
// the seconds by which EC2 lags, after its last pod's address was unassigned, a pod may
// get that one: nothing outside the registry would tell. With "provision": "none" the
// same holds at any time; there nobody unassigns anything.
const (
	lookBack  = "DescribeNetworkInterfaces"
	lookAgain = "DescribeNetworkInterfaces again"

	// settled is after what time EC2 is believed: "starting with a couple of seconds of
	// wait time" is the advice for describes that follow a change (EC2 API reference,
	// "Eventual consistency"); what its users see is seconds.
	settled = 30 * time.Second
)

// looks are the intents of a registry that is new, on a node on which nothing was ever
// used, or on any other.
func looks(first bool) []string {
	if first {
		return []string{lookBack, lookAgain}
	}
	return []string{lookBack, registry.InDoubt}
}

// isLook tells whether nothing is known to have been begun with the intent.
func isLook(i registry.Intent) bool { return i.Action == lookBack || later(i) }

// later tells whether the intent has to wait until EC2 has settled.
func later(i registry.Intent) bool { return i.Action == lookAgain || i.Action == registry.InDoubt }

// due tells whether there is an intent to look after now.
func due(s *registry.State) bool {
	for _, i := range s.Intents {
		if !later(i) || time.Since(i.Since) > settled {
			return true
		}
	}
	return false
}

// onlyLooks tells whether no process of this registry's is known to have begun anything.
func onlyLooks(s *registry.State) bool {
	return !slices.ContainsFunc(slices.Collect(maps.Values(s.Intents)), func(i registry.Intent) bool { return !isLook(i) })
}

// settle takes out of the registry what was in doubt and has turned out not to be there.
// Nobody uses it, and should it come back, a later Learn finds it.
func settle(s *registry.State, enis []aws.ENI, since time.Time) {
	for _, e := range enis {
		x := surplus{addrs: map[netip.Addr]time.Time{}}
		for _, a := range s.ENIs[e.ID].Addrs {
			if free, ok := s.Free.At(a); ok && !free.Before(since) && !carries(e, a) {
				x.addrs[a] = free
			}
		}
		for _, b := range s.ENIs[e.ID].Prefixes {
			if !b.Since.Before(since) && !carries(e, b.CIDR.Addr()) && !anyLeased(s, b.CIDR.Contains) {
				x.prefixes = append(x.prefixes, b)
			}
		}
		withdraw(s, e.ID, x)
	}
}

// dropUnseen forgets the ENIs that were in doubt and are not attached, as EC2 says for
// the second time.
func dropUnseen(s *registry.State, enis []aws.ENI, since time.Time) {
	for id, e := range s.ENIs {
		seen := slices.ContainsFunc(enis, func(seen aws.ENI) bool { return seen.ID == id })
		if !seen && e.Index > 0 && e.Grown.Equal(since) && !anyLeased(s, e.Has) {
			s.Drop(id)
		}
	}
}

// anyLeased tells whether one of those addresses is leased.
func anyLeased(s *registry.State, those func(netip.Addr) bool) bool {
	for a := range s.Leases.Keys() {
		if those(a) {
			return true
		}
	}
	return false
}

// settleBlindly is what a node does whose role may not ask EC2: it believes the metadata
// service, when that has had the time to hear of everything. Its silence about an ENI
// means nothing still. When such a node boots, it has to believe it at once.
func (p *Pool) settleBlindly(ctx context.Context) (sure bool, err error) {
	s, err := p.Registry.View()
	if err != nil {
		return false, err
	}
	since, ok := s.Doubt()
	var enis []aws.ENI
	if ok && time.Since(since) > lease.StaleMetadata {
		enis, err = p.Cloud.ENIs(ctx)
	}
	if err != nil || ok && enis == nil {
		return false, err
	}
	return ok, p.Registry.Change(ctx, func(s *registry.State) {
		settle(s, enis, since)
		maps.DeleteFunc(s.Intents, func(_ string, i registry.Intent) bool { return isLook(i) })
	})
}
