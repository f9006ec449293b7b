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

// A registry that was rebuilt knows what metadata and EC2 have just reported. Both may lag: metadata by minutes, EC2
// by seconds. They may still list what was unassigned right before the registry was lost. They may not list a new ENI
// yet. So a rebuilt registry is compared with EC2 twice: at once, to find interrupted calls, and when EC2 has
// settled. Until then, the addresses that no pod uses are unconfirmed, and no ADD takes one. Those of a /80 are too
// many to list, and an ADD may take one: the node never unassigns a /80, which goes with its ENI. An ENI that the
// rebuilt registry has, and whose link is not on the node, serves no pod.
//
// If no pod of a node has an address, the node uses what it finds at once. After a boot it has to. Nothing waits for
// the comparisons then, so a collection makes them. A mark shows that the node has not just booted: it has released
// something since. The mark is a file beside the registry's, and /run is empty after a boot.
//
// One case cannot be noticed. The address of the node's last pod was unassigned. Within the seconds by which EC2
// lags, another program deleted the whole directory of the registry. Then a pod may get that address, because nothing
// else on the node shows that it is gone. With "provision": "none", that holds at any time, but there no process
// unassigns anything.

// ReleasedMark names the mark for a begun release: this node releases addresses of an ENI, or an ENI. The mark is
// written before the call to EC2. The name of the file is the one of earlier releases.
const ReleasedMark = "gave-back"

// Settled is how long EC2 may lag. The advice for describes after a change is "starting with
// a couple of seconds of wait time" (EC2 API reference, "Eventual consistency"). Users report
// seconds.
const Settled = 30 * time.Second

// Due reports whether there is something to resume now.
func Due(s *registry.State) bool {
	now := time.Now()
	if r := s.Rebuilt; !r.Since.IsZero() && (!r.Compared || now.Sub(r.Since) > Settled) {
		return true
	}
	for _, i := range s.Intents {
		// what can wait, and what package less finishes
		later := i.Action == book.ModifyAction && now.Before(s.NotBefore[book.ModifyAction]) || lease.ReleasesChosen(i)
		if !later {
			return true
		}
	}
	return false
}

// Confirm compares a rebuilt registry with the ENIs that EC2 showed when it was asked. If EC2
// had settled by then, this is the last comparison. confirm reports whether unconfirmed
// addresses are confirmed now. An answer from before the rebuild confirms nothing.
func Confirm(s *registry.State, enis []aws.ENI, asked time.Time) (sure bool) {
	r := s.Rebuilt
	switch {
	case r.Since.IsZero() || asked.Before(r.Since):
		return false
	case asked.Sub(r.Since) <= Settled:
		s.Rebuilt.Compared = true
		return false
	case r.Unconfirmed:
		settle(s, enis, r.Since)
		dropUnseen(s, enis, r.Since)
	}
	s.Rebuilt = registry.Rebuilt{}
	return r.Unconfirmed
}

// settle removes from the registry the unconfirmed addresses that are not on their ENIs.
// No pod uses them. If one comes back, a later Learn finds it.
func settle(s *registry.State, enis []aws.ENI, since time.Time) {
	for _, e := range enis {
		x := book.Releasable{Addrs: map[netip.Addr]time.Time{}}
		for _, a := range s.ENIs[e.ID].Addrs {
			if free, ok := s.Free.At(a); ok && !free.Before(since) && !book.Carries(e, a) {
				x.Addrs[a] = free
			}
		}
		for _, b := range s.ENIs[e.ID].Prefixes {
			if !b.Since.Before(since) && !book.Carries(e, b.CIDR.Addr()) && !book.AnyLeased(s, b.CIDR.Contains) {
				x.Prefixes = append(x.Prefixes, b)
			}
		}
		book.Withdraw(s, e.ID, x)
	}
}

// dropUnseen removes the unconfirmed ENIs from the registry that EC2 does not show as
// attached for the second time.
func dropUnseen(s *registry.State, enis []aws.ENI, since time.Time) {
	for id, e := range s.ENIs {
		seen := slices.ContainsFunc(enis, func(seen aws.ENI) bool { return seen.ID == id })
		if !seen && e.Detachable() && e.Grown.Equal(since) && !book.AnyLeased(s, e.Has) {
			s.Drop(id)
		}
	}
}

// ConfirmByMetadata is for a node whose role may not ask EC2. It trusts metadata after the time in which metadata shows
// all changes. Even then, an ENI that metadata does not show may still exist. When such a node boots, it has to trust
// metadata at once. Intents stay, because an operator may correct the role.
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
			return // it was rebuilt again meanwhile
		}
		settle(s, enis, since)
		s.Rebuilt = registry.Rebuilt{}
		if p.Policy.Provision != lease.ProvisionNone {
			s.Rebuilt = registry.Rebuilt{Since: time.Now(), Compared: true}
		}
	})
	return ok, err
}
