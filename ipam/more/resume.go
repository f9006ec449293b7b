// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

// Resume finishes for a growth what earlier processes have begun and what cannot wait. It reports whether it has
// confirmed addresses. Then these may suffice for the waiting ADDs.
func (p *Node) Resume(ctx context.Context) (sure bool, err error) {
	if err := p.deleteOnTerminations(ctx); err != nil || p.canWait() {
		return false, err
	}
	sure, err = p.resume(ctx, p.reattach)
	return sure, call.Explain(err)
}

// resume finishes the calls of earlier processes that died or lost EC2's answer. Its caller holds the lock "grow", so
// every intent is left over from such a process. If there are no intents, which is nearly always so, resume asks
// neither EC2 nor metadata. resume calls stray with each ENI that was about to be attached. It reports whether
// unconfirmed addresses are confirmed now.
func (p *Node) resume(ctx context.Context, stray func(context.Context, aws.ENI) error) (sure bool, err error) {
	s, err := p.Registry.View()
	if err != nil || !known.Due(s) || lease.Unknown(s) {
		return false, err
	}
	if p.Policy.Provision == lease.ProvisionNone && len(s.Intents) == 0 {
		return p.ConfirmByMetadata(ctx)
	}
	if err := p.turns(ctx, s); err != nil {
		return false, fmt.Errorf("resume: %w", err)
	}
	if s, err = p.Registry.View(); err != nil || len(s.Intents) == 0 && s.Rebuilt == (registry.Rebuilt{}) {
		return false, err // the registry was lost while we waited
	}
	if e, ok := p.Made(s); ok {
		if book.PoolOf(e) != p.Policy.Pool {
			return false, nil // the next ADD of that pool goes on
		}
		if err := p.adoptAll(ctx, s, []aws.ENI{e}, stray); !errors.Is(err, aws.ErrInUse) {
			return false, err
		}
		// A process has attached it and was killed.
	}
	enis, asked, err := p.OursNow(ctx, s)
	if aws.NotAllowed(err) && len(s.Intents) == 0 {
		return p.ConfirmByMetadata(ctx)
	}
	for _, i := range s.Intents {
		if err != nil {
			return false, fmt.Errorf("find out what a call of an interrupted process has done (%s): %w", i.Action, err)
		}
	}
	if err != nil {
		return false, fmt.Errorf("compare the rebuilt registry with EC2: %w", err)
	}
	// What has left one ENI may be on another by now: first the one, then the other.
	err = p.Registry.Change(ctx, func(now *registry.State) {
		known.Agree(now, enis, asked)
		known.NoteAttached(now, enis, asked)
		s = now
	})
	if err != nil {
		return false, err
	}
	if err := p.adoptAll(ctx, s, enis, stray); err != nil {
		return false, err
	}
	before := s
	p.learnOthers(ctx, enis)
	err = p.Registry.Change(ctx, func(s *registry.State) {
		sure = known.Confirm(s, enis, asked)
		maps.DeleteFunc(s.Intents, func(_ string, i registry.Intent) bool {
			found := slices.ContainsFunc(enis, func(e aws.ENI) bool {
				return e.ID == i.ENI && !(p.Policy.Choice.ENI == i.ENI && book.Unrecorded(s, i, e)) &&
					!book.Provisions(s, e)
			})
			answered := found && i.Since.Before(asked)
			return !lease.ReleasesChosen(i) &&
				(answered && i.Action != book.ModifyAction || time.Since(i.Since) > intentLife)
		})
		book.PreventSecond(s, before, enis)
	})
	return sure, err
}

// canWait reports whether a growth can leave to a collection what resume would do. A collection can compare a registry
// without unconfirmed addresses, and repeat a change that can wait. A collection comes within minutes. If none has
// come, and EC2 does not throttle, growth compares.
func (p *Node) canWait() bool {
	const collected = 15 * time.Minute
	s, err := p.Registry.View()
	return err == nil && len(book.Unknowns(s)) == 0 && !s.Rebuilt.Unconfirmed &&
		(known.Throttled(s) || time.Since(s.Rebuilt.Since) < collected)
}

// turns waits until this node may repeat the calls of the intents. Otherwise resume would ask
// EC2, and could then not make the calls.
func (p *Node) turns(ctx context.Context, s *registry.State) error {
	for _, i := range s.Intents {
		if i.Action == book.ModifyAction || lease.ReleasesChosen(i) {
			continue // it can wait
		}
		if err := p.Turn(ctx, i.Action); err != nil {
			return err
		}
	}
	return nil
}

// reattach finishes what a growth has begun: it attaches the ENI, unless the ENI is for
// another pool.
func (p *Node) reattach(ctx context.Context, e aws.ENI) error {
	if book.PoolOf(e) != p.Policy.Pool {
		return p.abandon(ctx, e)
	}
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	err = p.attach(ctx, e, cmp.Or(book.TokenOf(s, e.ID), call.NewToken()),
		ENISpec{Pool: book.PoolOf(e), MinIndex: max(p.Policy.MinIndex, 1), Managed: e.Tags[book.TagManaged] == "true"},
		known.Attached{})
	_, known := s.ENIs[e.ID]
	if (errors.Is(err, errDiscarded) || known && noPlace(err)) && !errors.Is(err, aws.ErrNotRunning) {
		return nil // several were begun, and there is no room for all: that is an end, too
	}
	return err
}

// abandon deletes the ENI instead, because a collection needs no further ENI. An ENI without our tags may be the
// original's: it stays until an ADD needs it. An ENI that an operator's command has begun to make stays, too: if the
// command is repeated, it continues.
func (p *Node) abandon(ctx context.Context, e aws.ENI) error {
	s, err := p.Registry.View()
	if err != nil || e.Tags[book.TagManaged] != "true" {
		return err
	}
	if _, known := s.ENIs[e.ID]; known {
		// an operator or another program has detached it just now. Pods may have its addresses: a collection deletes it
		// if none has
		return nil
	}
	err = p.DeleteNow(ctx, e.ID)
	if errors.Is(err, aws.ErrInUse) { // EC2 has shown what it was: ask again, but let this growth go on
		return p.Registry.Change(ctx, func(s *registry.State) {
			s.Intents[call.NewToken()] = registry.Intent{Action: book.AttachAction, ENI: e.ID, Since: time.Now()}
		})
	}
	return err // not found: it may also be too new
}

// EndBegun calls resume for a collection, if there is something to finish. It waits for a growth that is under way.
// While EC2 throttles, EndBegun does not touch a new ENI, for at most ten minutes. If EC2 throttles what it asks
// itself, and an ADD waits, it leaves the rest to the next collection.
func (p *Node) EndBegun(ctx context.Context) error {
	s, err := p.Registry.View()
	if err != nil || !known.Due(s) {
		return err
	}
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return err
	}
	defer unlock()
	if s, err = p.Registry.View(); err != nil {
		return err
	}
	if _, ok := p.Made(s); ok {
		return nil // EC2 throttles its attachment: the next ADD goes on
	}
	if err := p.deleteOnTerminations(ctx); err != nil {
		return err
	}
	q := *p
	q.Mode = call.Mode{Finishes: true, Until: p.Mode.Until}
	if _, err = q.resume(ctx, q.abandon); errors.Is(err, call.ErrGivesWay) {
		slog.Info("the next collection finishes these calls", "reason", err)
		return nil
	}
	return err
}

// adoptAll finishes the creation of those ENIs that are ours. Then they are attached, end with the instance, and are in
// the registry with all addresses that EC2 reports. If an ENI belongs to others, and is not in the registry, adoptAll
// leaves it to Learn. If it fails, the kept answers may be the cause.
func (p *Node) adoptAll(
	ctx context.Context, s *registry.State, enis []aws.ENI, stray func(context.Context, aws.ENI) error,
) (failed error) {
	ended := func(e aws.ENI, err error) error {
		p.ForgetUnlessThrottled(err)
		return fmt.Errorf("finish the call %s of an interrupted process: %w", e.ID, err)
	}
	var ours, attached []aws.ENI
	for _, e := range enis {
		if !p.adopts(s, e) {
			continue
		}
		e, known, err := p.inSubnet(ctx, s, e)
		if err != nil {
			failed = ended(e, err) // those before it do not wait for it
			break
		}
		ours = append(ours, e)
		if known && e.Status != "available" {
			attached = append(attached, e)
		}
	}
	if err := p.AdoptAttached(ctx, attached); err != nil {
		return err
	}
	for _, e := range ours {
		if err := p.finish(ctx, s, e, stray); err != nil {
			return ended(e, err)
		}
	}
	return failed
}

// adopts reports whether adoptAll has to do with an ENI.
func (p *Node) adopts(s *registry.State, e aws.ENI) bool {
	was, known := s.ENIs[e.ID]
	switch {
	case !known && e.Description != book.Description(s.Instance.ID), book.Leaving(known, e):
		return false
	case e.Status == "available" && was.Draining:
		return false // a collection was about to delete it, and will
	case e.Status == "available" && was.NoLink(time.Now()):
		return false // it was attached, and an operator or another program has detached it
	}
	return e.Status != "available" || p.MakesENIs() // otherwise it is for an operator to attach or delete
}

// finish attaches an ENI, or has it end with the instance.
func (p *Node) finish(
	ctx context.Context, s *registry.State, e aws.ENI, stray func(context.Context, aws.ENI) error,
) error {
	switch {
	case e.Status == "available":
		return stray(ctx, e)
	case e.Description == book.Description(s.Instance.ID) && !e.DeleteOnTermination && p.MakesENIs():
		return p.endsWithInstance(ctx, e)
	}
	return nil
}

// learnOthers calls Learn if EC2 shows attached ENIs that are not in the registry. Others
// have created them, and metadata may show them by now.
func (p *Node) learnOthers(ctx context.Context, enis []aws.ENI) {
	s, err := p.Registry.View()
	unknown := func(e aws.ENI) bool { _, known := s.ENIs[e.ID]; return !known && e.Status != "available" }
	if err == nil && slices.ContainsFunc(enis, unknown) {
		err = p.Learn(ctx)
	}
	if err != nil {
		slog.Warn("attached ENIs could not be added to the registry: they serve no pods until the metadata "+
			"service shows them", "error", err)
	}
}

// inSubnet adds the CIDRs of its subnet to an ENI, because EC2's description of an ENI lacks them. inSubnet takes the
// CIDRs from the registry, from another ENI of the subnet, or from metadata. A node that creates ENIs also asks EC2. If
// none of them has the CIDRs, known is false, and the ENI waits until metadata shows it.
func (p *Node) inSubnet(ctx context.Context, s *registry.State, e aws.ENI) (_ aws.ENI, known bool, err error) {
	if e.CIDR.IsValid() || e.IPv6CIDR.IsValid() {
		return e, true, nil // this node has created it just now
	}
	of := func(subnet string, v4, v6 netip.Prefix) bool {
		if subnet == e.Subnet && (v4.IsValid() || v6.IsValid()) {
			e.CIDR, e.IPv6CIDR, known = v4, v6, true
		}
		return known
	}
	for _, other := range append([]registry.ENI{s.ENIs[e.ID]}, slices.Collect(maps.Values(s.ENIs))...) {
		if of(other.Subnet, other.CIDR, other.CIDR6) {
			return e, true, nil
		}
	}
	if p.MakesENIs() {
		subnets, err := p.ZoneSubnets(ctx, e.VPC, s.Instance.Zone)
		for _, n := range subnets {
			if of(n.ID, n.CIDR, n.IPv6CIDR) {
				return e, true, nil
			}
		}
		if err == nil {
			err = fmt.Errorf("subnet %s of %s: %w", e.Subnet, e.ID, aws.ErrNotFound)
		}
		if !errors.Is(err, aws.ErrDenied) || p.Policy.Provision == lease.ProvisionFull {
			return e, false, err
		}
	}
	shown, err := p.Cloud.ENIs(ctx)
	if err != nil {
		slog.Warn("the subnet of an ENI is not known: the ENI serves no pods until the metadata service shows it",
			"eni", e.ID, "error", err)
		return e, false, nil
	}
	for _, other := range shown {
		if of(other.Subnet, other.CIDR, other.IPv6CIDR) {
			break
		}
	}
	return e, known, nil
}
