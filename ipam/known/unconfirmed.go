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

// A rebuilt registry has what metadata and EC2 have just reported. Metadata lags by minutes, and EC2 by seconds. So
// both may still list addresses that were unassigned right before the registry was lost, and may lack a new ENI.
//
// Therefore the node compares a rebuilt registry with EC2 twice: at once, to find interrupted calls, and again when EC2
// has settled. Until then, addresses that no pod uses are unconfirmed, and no ADD takes such an address. But an ADD may
// take an address of a /80, because a /80 leaves the node only together with its ENI. If the link of this ENI is not on
// the node, the ENI serves no pod.
//
// If no pod of the node has an address, as after a boot, no address is unconfirmed. So the first pods need not wait,
// and a collection compares the registry with EC2 later. But if ReleasedMark exists, the node has released something
// since its boot, and the addresses are unconfirmed. The mark is a file in /run, which is empty after a boot.
//
// In one case, a pod may get an address that the node no longer has. The node unassigns the address of its last pod,
// and within seconds another program deletes the directory of the registry. The mark is in this directory. So nothing
// on the node shows any more that the address is gone. Without a mark, a network with "provision": "none" trusts
// metadata, even if another network of the node allows changes.

// ReleasedMark is the name of a mark: this node has begun to release addresses or an ENI to EC2. A process writes the
// mark before its call to EC2. Earlier versions of this suite use the same name.
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
		// An intent for DeleteOnTermination can wait while EC2 throttles the call. An intent for a release of a single
		// address can wait, because package less finishes the release.
		later := i.Action == book.ModifyAction && now.Before(s.NotBefore[book.ModifyAction]) || lease.ReleasesChosen(i)
		if !later {
			return true
		}
	}
	return false
}

// Confirm compares a rebuilt registry with the answer enis of EC2. A process asked EC2 at askedAt. An answer from
// before the rebuild confirms nothing. If EC2 had settled by askedAt, Confirm removes the unconfirmed addresses that
// EC2 does not show, and confirms the others. It then returns true if there were unconfirmed addresses.
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

// dropUnconfirmed removes from the registry the unconfirmed addresses and prefixes that enis does not show. The
// argument enis is the answer of EC2 or metadata. An address is unconfirmed if it is free, and became free at rebuiltAt
// or later. A prefix is unconfirmed if the registry got it at rebuiltAt or later, and no pod uses its addresses. A
// single address of the ENI may be in the range of the prefix. Such an address does not belong to the prefix.
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

// dropUnseen removes the ENIs that EC2 does not show in the second comparison. It removes only ENIs that the registry
// got at the time rebuiltAt.
func dropUnseen(s *registry.State, enis []aws.ENI, rebuiltAt time.Time) {
	for id, e := range s.ENIs {
		seen := slices.ContainsFunc(enis, func(seen aws.ENI) bool { return seen.ID == id })
		if !seen && e.Detachable() && e.Grown.Equal(rebuiltAt) && !book.AnyLeased(s, e.Has) {
			s.Drop(id)
		}
	}
}

// ConfirmByMetadata does what Confirm does, but without EC2. It is for a role that has no permission to ask EC2, and
// for a node that changes nothing in EC2. It does nothing until StaleMetadata has passed since the rebuild. From then
// on, metadata shows all changes, and ConfirmByMetadata compares the registry with metadata. It removes no ENI, and
// ends no intents.
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
