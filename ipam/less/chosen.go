// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The functions of this file release chosen addresses to EC2 as soon as no pod has them. The pod that has chosen an
// address may start again on another node. The pod's DEL leaves the mark that starts such a release.

// ReleaseChosen releases to EC2 the chosen addresses that no pod has, and returns these addresses. While a growth is
// under way, or EC2 throttles or does not answer, ReleaseChosen tries again until ctx is done. Before the first try, it
// looks at the kernel, to prove that no process of the node uses the addresses. An address that a DEL frees after this
// look waits for the next ReleaseChosen, which the DEL's mark starts.
func (p *Node) ReleaseChosen(ctx context.Context) ([]netip.Addr, error) {
	s, err := p.Registry.View()
	if err != nil || !lease.AnyToRelease(s) || p.Policy.Provision == lease.ProvisionNone {
		return nil, err
	}
	if err := p.OfThisInstance(ctx); err != nil {
		return nil, err
	}
	p.Look(ctx)
	used, err := p.InUse()
	if err != nil {
		return nil, err
	}
	c := &Collecting{Collection: Collection{Max: -1}, Used: used}
	for attempt := 0; ; attempt++ {
		err := p.releaseChosen(ctx, c)
		passes := errors.Is(err, errGrowing) || errors.Is(err, aws.ErrThrottled) || errors.Is(err, aws.ErrTransient)
		if !passes || call.Sleep(ctx, p.Backoff(attempt), "") != nil {
			return c.Unassigned, err
		}
	}
}

// releaseChosen makes one attempt of ReleaseChosen. A collection makes only this attempt. If a growth takes too long,
// the error is errGrowing.
func (p *Node) releaseChosen(ctx context.Context, c *Collecting) error {
	s, err := p.Registry.View()
	if err != nil || c.Max == 0 || !lease.AnyToRelease(s) {
		return err
	}
	if p.Policy.Provision == lease.ProvisionNone {
		return p.forgetReleases(ctx)
	}
	failed := p.repeatReleases(ctx, c) // after an error, go on: perhaps only the ENIs of these releases are the cause
	c.stopped = errors.Is(failed, aws.ErrThrottled)
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		for _, pick := range []picker{c.chosenAddrs(netip.Addr.Is4), c.chosenAddrs(netip.Addr.Is6)} {
			gone, err := p.releaseFrom(ctx, s, id, pick)
			failed, c.stopped = errors.Join(failed, err), c.stopped || stops(err)
			c.Unassigned = append(c.Unassigned, gone.List()...)
		}
	}
	return failed
}

// forgetReleases deletes the old intents of unfinished releases. Collections call it if a network of the node has the
// provision "none", because such collections release nothing. If EC2 has not carried out a release, metadata still
// shows the address, and pods can get it again. forgetReleases also forgets the owners of free addresses that wait for
// a release. Other pods can then get these addresses.
func (p *Node) forgetReleases(ctx context.Context) error {
	return p.Registry.Change(ctx, func(s *registry.State) {
		book.LeftReleases(s) // deletes the intents whose addresses the registry has again
		maps.DeleteFunc(s.Intents, func(_ string, i registry.Intent) bool {
			return lease.ReleasesChosen(i) && time.Since(i.Since) > lease.StaleMetadata
		})
		maps.DeleteFunc(s.Owners, func(a netip.Addr, _ registry.Pod) bool {
			since, _ := s.Free.At(a)
			return lease.ToRelease(s, a) && time.Since(since) > lease.StaleMetadata
		})
	})
}

// chosenAddrs returns a picker for chosen addresses of one family. The picker returns those addresses that an ENI must
// now release to EC2.
func (c *Collecting) chosenAddrs(family func(netip.Addr) bool) picker {
	return func(s *registry.State, id string, now time.Time) book.Releasable {
		x, e := book.Releasable{Addrs: map[netip.Addr]time.Time{}}, s.ENIs[id]
		for a := range s.Owners {
			if len(x.Addrs) < c.left() && family(a) && e.Has(a) && lease.ToRelease(s, a) &&
				c.isUnused(s, e, a, now) && !e.Draining {
				x.Addrs[a], _ = s.Free.At(a)
			}
		}
		return x
	}
}

// isUnused reports whether an address of the ENI was unused when the collection looked at the kernel. If a lease of the
// address has ended since this look, the address counts as used: the lease's pod may have started after the look. An
// address for which an ADD waits counts as used. While the ENI's link is not on the node, each address counts as used,
// because another instance may have the ENI.
func (c *Collecting) isUnused(s *registry.State, e registry.ENI, a netip.Addr, now time.Time) bool {
	return !e.NoLink(now) && !c.Used.Partial && c.Used.Of(e.MAC, a) == "" && !c.Used.InPod(e.MAC) &&
		!s.FreedAfter(a, c.Used.Looked) && !lease.AwaitedAddr(s, a, now)
}

// repeatReleases repeats the releases of processes that were killed or got no answer. A process removes an address from
// the registry before the process calls EC2. So no pod has got the addresses of these releases. If EC2 has already
// carried out a release, EC2 refuses the repeated call.
func (p *Node) repeatReleases(ctx context.Context, c *Collecting) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	begun := slices.DeleteFunc(slices.Collect(maps.Values(s.Intents)),
		func(i registry.Intent) bool { return !lease.ReleasesChosen(i) })
	if len(begun) == 0 {
		return nil
	}
	for _, i := range begun {
		if err := p.AwaitTurn(ctx, i.Action); err != nil { // wait before taking the lock, because ADDs need the lock
			return err
		}
	}
	unlock, err := p.lockGrowth(ctx) // under this lock, no other process releases the addresses, or asks EC2 for them
	if err != nil {
		return err
	}
	defer unlock()
	var left []registry.Intent
	err = p.Registry.Change(ctx, func(s *registry.State) { left = book.LeftReleases(s) })
	failed := err
	for _, i := range left {
		if s, err = p.Registry.View(); err != nil {
			return err
		}
		if e := s.ENIs[i.ENI]; c.isUnused(s, e, i.Addr, time.Now()) {
			failed = errors.Join(failed, p.repeatRelease(ctx, i))
		}
		if stops(failed) {
			break // ADDs need the lock; the next collection repeats the other releases
		}
	}
	return failed
}

// repeatRelease unassigns the address of an intent. The caller holds the lock "grow".
func (p *Node) repeatRelease(ctx context.Context, i registry.Intent) error {
	x := book.Releasable{Addrs: map[netip.Addr]time.Time{i.Addr: {}}}
	err := p.unassignOnce(ctx, i.ENI, x)
	if err != nil && !call.IsPartial(err) {
		return err
	}
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		book.EndRelease(s, x)
		s.Gone[i.Addr] = time.Now()
	})
}
