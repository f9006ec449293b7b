// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An operator or another program may unassign an address. The node gets no message, and the next pod with that address
// would have no network.
//
// So a collection compares the registry with metadata. Metadata forgets ENIs, and may lag by minutes. So if metadata
// does not show an address, the collection asks EC2. If EC2 does not show the address either, the collection removes it
// from the registry. EC2's descriptions also lag. So addresses that EC2 has assigned in the last seconds stay in any
// case.

// Correct removes from the registry the addresses and prefixes that EC2 no longer shows on this node's ENIs. The
// argument shownENIs has the ENIs that metadata shows. If metadata shows all that the registry has, Correct does not
// ask EC2.
func (p *Node) Correct(ctx context.Context, shownENIs []aws.ENI) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	asked := time.Now()
	shown := func(id string, known registry.ENI) bool {
		i := slices.IndexFunc(shownENIs, func(e aws.ENI) bool { return e.ID == id })
		return i >= 0 && lostAddrs(s, known, shownENIs[i], asked).Empty()
	}
	all := true
	for id, known := range s.ENIs {
		all = all && shown(id, known)
	}
	if all {
		return nil
	}
	enis, err := p.DescribeENIs(ctx, aws.ByInstance(s.Instance.ID))
	if err != nil {
		return fmt.Errorf("ask EC2 about addresses that metadata does not show: %w", err)
	}
	return p.Registry.Change(ctx, func(s *registry.State) {
		Agree(s, enis, asked)
		NoteAttached(s, enis, asked)
	})
}

// Agree compares the registry with enis, EC2's descriptions of ENIs. It removes from the registry the addresses and
// prefixes that EC2 does not show. The argument askedAt is when a process asked EC2 for the descriptions.
func Agree(s *registry.State, enis []aws.ENI, askedAt time.Time) {
	askedAt = registry.ToCurrentClock(askedAt)
	for _, e := range enis {
		known := s.ENIs[e.ID]
		if known.Foreign || e.Instance != s.Instance.ID {
			continue
		}
		if x := lostAddrs(s, known, e, askedAt); !x.Empty() {
			slog.Warn("an operator or another program has unassigned addresses of the ENI. Pods with these addresses "+
				"have lost their network", "eni", e.ID, "addrs", x.List(), "prefixes", x.CIDRs())
			book.Withdraw(s, e.ID, x)
		}
	}
}

// lostAddrs returns the addresses and prefixes that the registry's entry of an ENI has, but an answer of metadata or
// EC2 does not show. The argument known is the entry. The argument e is the answer to a question at the time askedAt.
// lostAddrs leaves out addresses and prefixes that were too new at the time askedAt: see MayLackAddr and MayLack.
// lostAddrs also leaves out the primary address, because this address cannot leave its ENI.
func lostAddrs(s *registry.State, known registry.ENI, e aws.ENI, askedAt time.Time) book.Releasable {
	x := book.Releasable{Addrs: map[netip.Addr]time.Time{}}
	for _, a := range known.Addrs {
		if !MayLackAddr(s, known, a, askedAt) && a != known.Primary() && !book.Carries(e, a) {
			x.Addrs[a] = time.Time{}
		}
	}
	for _, b := range known.Prefixes {
		if !MayLack(b.Since, askedAt) && !book.Delegates(e, b.CIDR) {
			x.Prefixes = append(x.Prefixes, b)
		}
	}
	return x
}

// MayLack reports whether EC2's answer may lack a change, because EC2's descriptions lag. A process asked EC2 at
// askedAt, and the change was at changedAt.
func MayLack(changedAt, askedAt time.Time) bool { return !changedAt.Before(askedAt.Add(-Settled)) }

// MayLackAddr reports whether EC2's answer to a question at askedAt may lack an address of the ENI e, because the
// address is new. An address is old if its ENI last grew long ago, or its prefix is old. The ENIs of a busy node grow
// all the time, so an address is also old if it had a lease long ago.
func MayLackAddr(s *registry.State, e registry.ENI, a netip.Addr, askedAt time.Time) bool {
	since := e.Grown
	for _, b := range e.Prefixes {
		if b.CIDR.Contains(a) {
			since = b.Since
		}
	}
	return MayLack(since, askedAt) && !usedBefore(s, a, askedAt.Add(-Settled))
}

// usedBefore reports whether an address had a lease before the time t.
func usedBefore(s *registry.State, a netip.Addr, t time.Time) bool {
	if l, leased := s.Leases.At(a); leased {
		return l.Since.Before(t)
	}
	since, _ := s.Free.At(a)
	return !since.IsZero() && since.Before(t)
}

// Missing asks EC2 again about an ENI that EC2 has not found. EC2's descriptions lag, so the first answer may be wrong.
// If EC2 again does not find the ENI, Missing removes the ENI from the registry. A new ENI stays, because both answers
// may be wrong.
func (p *Node) Missing(ctx context.Context, id string) error {
	s, err := p.Registry.View()
	if err != nil || time.Since(s.ENIs[id].Grown) < Settled {
		return err
	}
	enis, err := p.DescribeENIs(ctx, aws.ByID(id))
	if err != nil && !errors.Is(err, aws.ErrNotFound) || len(enis) > 0 {
		return err
	}
	return p.Forget(ctx, id)
}

// StrangeNow does what book.Strange does, for addresses and prefixes that EC2 has just given to an ENI. If another ENI
// of the registry has one of them, StrangeNow first asks EC2 whether the other ENI still exists. A process may have
// been killed after it had deleted the other ENI, or an operator may have deleted it.
func (p *Node) StrangeNow(
	ctx context.Context, id string, e registry.ENI, addrs []netip.Addr, cidrs []netip.Prefix,
) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	strange := book.Strange(s, id, e, addrs, cidrs)
	if strange == nil {
		return nil
	}
	for _, other := range book.Sharers(s, id, addrs, cidrs) {
		if p.Missing(ctx, other) != nil {
			return strange // an error of the question is no error of the call that has given the addresses
		}
	}
	if s, err = p.Registry.View(); err != nil {
		return err
	}
	return book.Strange(s, id, e, addrs, cidrs)
}

// Forget removes an ENI from the registry, because EC2 has answered that this node no longer has the ENI. The leases on
// the ENI stay until their pods end, because EC2's answer may be wrong for a while.
func (p *Node) Forget(ctx context.Context, id string) error {
	return p.Registry.Change(ctx, func(s *registry.State) { s.Drop(id) })
}

// Compare makes the registry's addresses and prefixes of an ENI agree with EC2's description of the ENI.
func (p *Node) Compare(ctx context.Context, id string) error {
	asked := time.Now()
	enis, err := p.DescribeENIs(ctx, aws.ByID(id))
	if err != nil {
		return fmt.Errorf("compare %s with EC2: %w", id, err)
	}
	used := p.Used(macs(enis)...)
	return p.Registry.Change(ctx, func(s *registry.State) {
		for _, e := range enis {
			AddAll(s, e, used)
		}
		Agree(s, enis, asked)
	})
}

// AddAll records the addresses and prefixes that EC2 reports for an ENI. A new address gets a lease if a pod uses it.
// Otherwise the address cools, because EC2's answer may be old, or an earlier pod may have had the address. But if this
// node has just asked EC2 for addresses of the ENI, and EC2's answer was lost, the new address is free at once. Only a
// registry with unconfirmed addresses may lack an address that an earlier pod has had.
func AddAll(s *registry.State, e aws.ENI, used lease.Used) {
	had := s.ENIs[e.ID]
	if had.Foreign {
		return
	}
	now := time.Now()
	assigned := book.BegunAssign(s, e.ID) && !s.Rebuilt.Unconfirmed
	discovery{State: s, used: used, now: now, lag: LagOfEC2, noPodYet: assigned}.learnAddrs(e)
	if has := s.ENIs[e.ID]; len(has.Addrs) > len(had.Addrs) {
		has.Grown = now
		s.ENIs[e.ID] = has
	}
}
