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

// An operator or another program may unassign an address, in the console or with another tool. The node gets no message
// about this change. The next pod with that address would have no network.
//
// So a collection compares the registry with metadata. If metadata does not show an address, the address may still be
// there: metadata forgets ENIs, and may lag by minutes. In this case, the collection asks EC2, and EC2's answer counts.
// EC2's answer does not count for addresses that EC2 has assigned in the last seconds, because a describe may not show
// these addresses yet.

// Correct removes from the registry the addresses and prefixes that EC2 no longer shows on this node's ENIs. seen are
// the ENIs that the metadata service shows. If seen has all addresses of the registry, Correct does not ask EC2.
func (p *Node) Correct(ctx context.Context, seen []aws.ENI) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	asked := time.Now()
	shown := func(id string, known registry.ENI) bool {
		i := slices.IndexFunc(seen, func(e aws.ENI) bool { return e.ID == id })
		return i >= 0 && lostAddrs(s, known, seen[i], asked).Empty()
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
		return fmt.Errorf("ask EC2 for addresses that metadata does not show: %w", err)
	}
	return p.Registry.Change(ctx, func(s *registry.State) {
		Agree(s, enis, asked)
		NoteAttached(s, enis, asked)
	})
}

// Agree removes from the registry the addresses and prefixes that are not on the ENIs of this instance. enis is EC2's
// description of these ENIs, from the time asked.
func Agree(s *registry.State, enis []aws.ENI, asked time.Time) {
	for _, e := range enis {
		known := s.ENIs[e.ID]
		if known.Foreign || e.Instance != s.Instance.ID {
			continue
		}
		if x := lostAddrs(s, known, e, asked); !x.Empty() {
			slog.Warn("an operator or another program has unassigned addresses of the ENI: pods that have them have "+
				"lost their network",
				"eni", e.ID, "addrs", x.List(), "prefixes", x.CIDRs())
			book.Withdraw(s, e.ID, x)
		}
	}
}

// lostAddrs returns the addresses and prefixes that the registry has on an ENI, and that e does not show. e comes from
// metadata or EC2. lost leaves out addresses that were too new for this source at the time asked. lost also leaves out
// the primary address, which cannot leave its ENI.
func lostAddrs(s *registry.State, known registry.ENI, e aws.ENI, asked time.Time) book.Releasable {
	x := book.Releasable{Addrs: map[netip.Addr]time.Time{}}
	for _, a := range known.Addrs {
		if !MayLackAddr(s, known, a, asked) && a != known.Primary() && !book.Carries(e, a) {
			x.Addrs[a] = time.Time{}
		}
	}
	for _, b := range known.Prefixes {
		if !MayLack(b.Since, asked) && !book.Delegates(e, b.CIDR) {
			x.Prefixes = append(x.Prefixes, b)
		}
	}
	return x
}

// MayLack reports whether EC2's answer to a question of the time asked may lack what EC2 did at the time since.
func MayLack(since, asked time.Time) bool { return !since.Before(asked.Add(-Settled)) }

// MayLackAddr reports whether EC2's answer to a question of the time asked may lack an address of an ENI. EC2's answer
// has all old addresses. An address is old if the ENI has not grown lately, or if the address is of an old prefix. On a
// busy node, an ENI grows all the time. So an address is also old if its lease is old, or if its last lease ended long
// ago.
func MayLackAddr(s *registry.State, e registry.ENI, a netip.Addr, asked time.Time) bool {
	since := e.Grown
	for _, b := range e.Prefixes {
		if b.CIDR.Contains(a) {
			since = b.Since
		}
	}
	return MayLack(since, asked) && !usedBefore(s, a, asked.Add(-Settled))
}

// usedBefore reports whether an address has had a lease before a time.
func usedBefore(s *registry.State, a netip.Addr, t time.Time) bool {
	if l, leased := s.Leases.At(a); leased {
		return l.Since.Before(t)
	}
	since, _ := s.Free.At(a)
	return !since.IsZero() && since.Before(t)
}

// Missing asks EC2 again about an ENI that EC2 has reported as not found. If EC2 again does not find the ENI, Missing
// removes the ENI from the registry. EC2's first answer may be wrong because EC2 lags. If the ENI is new, both answers
// may be wrong: then Missing does nothing.
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

// Forget removes an ENI from the registry, because EC2 says that this node no longer has the ENI. The leases on the ENI
// stay until their pods end, because EC2's answer may be wrong for a while.
func (p *Node) Forget(ctx context.Context, id string) error {
	return p.Registry.Change(ctx, func(s *registry.State) { s.Drop(id) })
}

// Compare corrects the registry's entries about the addresses of an ENI, by EC2's description. An operator or another
// program may have changed the addresses. Or a call of this node may have changed them, and the answer to the call was
// lost.
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

// AddAll records the addresses and prefixes that EC2 reports for an ENI. AddAll treats new addresses and prefixes as
// Learn does: a pod may use them already, and EC2's answer may be old.
func AddAll(s *registry.State, e aws.ENI, used lease.Used) {
	had := s.ENIs[e.ID]
	if had.Foreign {
		return
	}
	now := time.Now()
	discovery{State: s, used: used, now: now, lag: LagOfEC2}.learnAddrs(e)
	if has := s.ENIs[e.ID]; len(has.Addrs) > len(had.Addrs) {
		has.Grown = now
		s.ENIs[e.ID] = has
	}
}
