// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A rebuilt registry has what metadata and EC2 have just reported. Both may lag: metadata by minutes, EC2 by seconds.
// So metadata and EC2 may still list addresses that were unassigned right before the registry was lost, and may lack a
// new ENI. Therefore the node compares a rebuilt registry with EC2 twice. The node makes the first comparison at once,
// to find interrupted calls. It makes the second comparison when EC2 has settled. Until the second comparison, the
// addresses that no pod uses are unconfirmed, and no ADD takes such an address. But an ADD may take an address of a
// /80, because the node never unassigns a /80: the /80 leaves only with its ENI. An ENI of a rebuilt registry serves no
// pod if its link is not on the node.
//
// If no pod of the node has an address, as after a boot, pods get the addresses of the rebuilt registry at once.
// Otherwise, the first pods after a boot would have to wait, because the node has no other addresses. No ADD then waits
// for the two comparisons, so a collection makes them. But if the mark ReleasedMark exists, the node has released
// something since its boot, and the addresses are unconfirmed. The mark is a file beside the registry's file in /run,
// and /run is empty after a boot.
//
// In one case, a pod may get an address that the node no longer has. First, the node unassigns the address of its last
// pod. Within the next seconds, while EC2 lags, another program deletes the whole directory of the registry. After
// that, nothing on the node shows that the address is gone. The same can happen in a network with "provision": "none"
// if there is no mark, and other networks of the node allow changes. An ADD of this network knows only its own network.
// So without the mark, it trusts metadata, which may still show the released address.

// ReleasedMark is the name of a mark. The mark shows that this node has begun to release addresses or an ENI to EC2. A
// process writes the mark before its call to EC2. Earlier versions of this suite use the same name.
const ReleasedMark = "gave-back"

// Settled is how long EC2 may lag. The advice for describe calls after a change is "starting with a couple of seconds
// of wait time" (EC2 API reference, "Eventual consistency"). Users report lags of seconds.
const Settled = 30 * time.Second

// Due reports whether a process now has to finish interrupted calls, or to compare the registry with EC2.
func Due(s *registry.State) bool {
	now := time.Now()
	if r := s.Rebuilt; !r.Since.IsZero() && (!r.Compared || now.Sub(r.Since) > Settled) {
		return true
	}
	for _, i := range s.Intents {
		// An intent is for later in two cases. EC2 throttles the call that sets DeleteOnTermination, or package less
		// finishes the intent's call.
		later := i.Action == book.ModifyAction && now.Before(s.NotBefore[book.ModifyAction]) || lease.ReleasesChosen(i)
		if !later {
			return true
		}
	}
	return false
}

// Confirm compares a rebuilt registry with the ENIs that EC2 has returned. The argument askedAt is the time when a
// process asked EC2. If EC2 had settled by that time, this is the last comparison. If the registry has unconfirmed
// addresses, Confirm then removes those that EC2 does not show. The other unconfirmed addresses are then confirmed, and
// Confirm returns true. If a process asked EC2 before the rebuild, EC2's answer confirms nothing.
func Confirm(s *registry.State, enis []aws.ENI, askedAt time.Time) (sure bool) {
	r := s.Rebuilt
	askedAt = registry.ToCurrentClock(askedAt)
	switch {
	case r.Since.IsZero() || askedAt.Before(r.Since):
		return false
	case askedAt.Sub(r.Since) <= Settled:
		s.Rebuilt.Compared = true
		return false
	case r.Unconfirmed:
		dropUnconfirmed(s, enis, r.Since)
		dropUnseen(s, enis, r.Since)
	}
	s.Rebuilt = registry.Rebuilt{}
	return r.Unconfirmed
}

// dropUnconfirmed removes from the registry the unconfirmed addresses and prefixes that the ENIs in enis do not have.
// The argument enis is the answer of EC2 or metadata. An address is unconfirmed if it is free and became free at
// rebuiltAt or later. A prefix is unconfirmed if the registry got it at rebuiltAt or later, and no pod uses its
// addresses. The ENI may have a single address whose number is in the range of the prefix. Such an address does not
// belong to the prefix, so a pod with this address does not use the prefix. If an address appears again, a later Learn
// finds it.
func dropUnconfirmed(s *registry.State, enis []aws.ENI, rebuiltAt time.Time) {
	for _, e := range enis {
		x := book.Releasable{Addrs: map[netip.Addr]time.Time{}}
		known := s.ENIs[e.ID]
		for _, a := range known.Addrs {
			if free, ok := s.Free.At(a); ok && !free.Before(rebuiltAt) && !book.Carries(e, a) {
				x.Addrs[a] = free
			}
		}
		for _, b := range known.Prefixes {
			used := func(a netip.Addr) bool { return b.CIDR.Contains(a) && !slices.Contains(known.Addrs, a) }
			if !b.Since.Before(rebuiltAt) && !book.Delegates(e, b.CIDR) && !book.AnyLeased(s, used) {
				x.Prefixes = append(x.Prefixes, b)
			}
		}
		book.Withdraw(s, e.ID, x)
	}
}

// dropUnseen removes an ENI from the registry if EC2 does not show the ENI in the second comparison. It removes only
// ENIs that the registry got when it was rebuilt, at the time rebuiltAt.
func dropUnseen(s *registry.State, enis []aws.ENI, rebuiltAt time.Time) {
	for id, e := range s.ENIs {
		seen := slices.ContainsFunc(enis, func(seen aws.ENI) bool { return seen.ID == id })
		if !seen && e.Detachable() && e.Grown.Equal(rebuiltAt) && !book.AnyLeased(s, e.Has) {
			s.Drop(id)
		}
	}
}

// ConfirmByMetadata confirms a rebuilt registry without EC2. Its caller has found that the role has no permission to
// ask EC2, or that no process of the node changes anything in EC2. On all other nodes, Confirm does this work.
// ConfirmByMetadata compares the registry with metadata when StaleMetadata has passed since the rebuild, because
// metadata then shows all changes. An ENI that metadata does not show stays in the registry, because the ENI may still
// exist. ConfirmByMetadata does not end intents: package more ends them.
func (p *Node) ConfirmByMetadata(ctx context.Context) (sure bool, err error) {
	s, err := p.Registry.View()
	if err != nil {
		return false, err
	}
	since, ok := s.Unconfirmed()
	var enis []aws.ENI
	if ok && time.Since(since) > lease.StaleMetadata {
		enis, err = p.Cloud.ENIs(ctx)
	}
	if err != nil || ok && enis == nil {
		return false, err
	}
	viewed := s.Rebuilt
	err = p.Registry.Change(ctx, func(s *registry.State) {
		if ok = ok && s.Rebuilt == viewed; s.Rebuilt != viewed {
			return // the registry was rebuilt again meanwhile
		}
		dropUnconfirmed(s, enis, since)
		s.Rebuilt = registry.Rebuilt{}
		if !p.TrustsMetadata() {
			s.Rebuilt = registry.Rebuilt{Since: time.Now(), Compared: true}
		}
	})
	return ok, err
}
