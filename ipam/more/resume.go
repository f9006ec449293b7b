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

// Resume finishes calls that earlier processes have begun, except those that can wait. The result confirmed is true if
// Resume has confirmed the unconfirmed addresses. The growth then ends, because these addresses may be enough for the
// waiting ADDs.
func (p *Node) Resume(ctx context.Context) (confirmed bool, err error) {
	if err := p.setAllDeleteOnTermination(ctx); err != nil || p.canWait() {
		return false, err
	}
	confirmed, err = p.resumeCalls(ctx, p.reattach)
	return confirmed, call.Explain(err)
}

// resumeCalls finishes the calls of earlier processes that were killed or got no answer from EC2. Its caller holds the
// lock "grow", so every intent in the registry is from an earlier process. Nearly always, there are no intents. Then
// resumeCalls has work only if the node has rebuilt its registry: it compares a rebuilt registry with EC2 or metadata.
// If an earlier process wanted to attach an ENI, and the ENI is not attached, resumeCalls calls onUnattached with the
// ENI. The result confirmed is true if resumeCalls has confirmed the unconfirmed addresses.
func (p *Node) resumeCalls(
	ctx context.Context, onUnattached func(context.Context, aws.ENI) error,
) (confirmed bool, err error) {
	s, err := p.Registry.View()
	if err != nil || !known.Due(s) || lease.Unknown(s) {
		return false, err
	}
	if p.TrustsMetadata() && !s.Rebuilt.Changes && len(s.Intents) == 0 {
		return p.ConfirmByMetadata(ctx)
	}
	if err := p.awaitTurns(ctx, s); err != nil {
		return false, fmt.Errorf("finish the calls of interrupted processes: %w", err)
	}
	if s, err = p.Registry.View(); err != nil || len(s.Intents) == 0 && s.Rebuilt == (registry.Rebuilt{}) {
		return false, err // the registry was lost while this process waited
	}
	if e, ok := p.Made(s); ok {
		if book.PoolOf(e) != p.Policy.Pool {
			return false, nil // the ENI is for another pool, and the next ADD of that pool continues
		}
		if err := p.adoptAll(ctx, s, []aws.ENI{e}, onUnattached); !errors.Is(err, aws.ErrInUse) {
			return false, err
		}
		// EC2 says that the ENI is attached: a process was killed before it recorded the attachment.
	}
	enis, asked, err := p.OursNow(ctx, s)
	if aws.NotAllowed(err) {
		var e error
		if s, e = p.endOldIntents(ctx, s); e != nil {
			return false, e
		}
		if len(book.Unknowns(s)) == 0 {
			return p.ConfirmByMetadata(ctx)
		}
	}
	for _, i := range s.Intents {
		if err != nil {
			return false, fmt.Errorf("find out what a call of an interrupted process has done (%s): %w", i.Action, err)
		}
	}
	if err != nil {
		return false, fmt.Errorf("compare the rebuilt registry with EC2: %w", err)
	}
	// An address may have moved from one ENI to another. So remove it from the old ENI before the new ENI gets it.
	err = p.Registry.Change(ctx, func(now *registry.State) {
		known.Agree(now, enis, asked)
		known.NoteAttached(now, enis, asked)
		s = now
	})
	if err != nil {
		return false, err
	}
	if err := p.adoptAll(ctx, s, enis, onUnattached); err != nil {
		return false, err
	}
	before := s
	p.learnOthers(ctx, enis)
	err = p.Registry.Change(ctx, func(s *registry.State) {
		confirmed = known.Confirm(s, enis, asked)
		for _, e := range enis {
			if _, known := s.ENIs[e.ID]; p.leavesToOthers(e) && !known && book.TokenOf(s, e.ID) == "" {
				s.Intents[call.NewToken()] = attachIntent(s, e.ID)
			}
		}
		maps.DeleteFunc(s.Intents, func(_ string, i registry.Intent) bool {
			found := slices.ContainsFunc(enis, func(e aws.ENI) bool {
				return e.ID == i.ENI && !(p.Policy.Choice.ENI == i.ENI && book.Unrecorded(s, i, e)) &&
					!book.Provisions(s, e) && !(i.Action == book.AttachAction && p.leavesToOthers(e))
			})
			answered := found && i.Since.Before(registry.ToCurrentClock(asked))
			return !lease.ReleasesChosen(i) && answered && i.Action != book.ModifyAction || isTooOld(i)
		})
		book.PreventSecond(s, before, enis)
	})
	return confirmed, err
}

// leavesToOthers returns true if e is an unattached ENI of a growth, but this process must not create ENIs. Another
// network may have begun to create the ENI, and the next ADD of that network continues. Until then, the registry has an
// intent about the ENI.
func (p *Node) leavesToOthers(e aws.ENI) bool {
	return e.Status == "available" && e.Tags[book.TagManaged] == "true" && !p.MakesENIs()
}

// endOldIntents deletes the intents that are too old, and returns the latest state. Perhaps the role has no permission
// to ask EC2 for the outcomes of calls. Then EC2 never tells the outcomes, and old intents would stop each growth until
// the node boots. Metadata shows the results of such old calls.
func (p *Node) endOldIntents(ctx context.Context, s *registry.State) (*registry.State, error) {
	if len(s.Intents) == 0 {
		return s, nil
	}
	err := p.Registry.Change(ctx, func(now *registry.State) {
		maps.DeleteFunc(now.Intents, func(_ string, i registry.Intent) bool { return isTooOld(i) })
		s = now
	})
	return s, err
}

// isTooOld reports whether an intent is so old that no process has to wait for EC2's answer. Package less finishes
// releases of single addresses, however old they are.
func isTooOld(i registry.Intent) bool {
	return !lease.ReleasesChosen(i) && time.Since(i.Since) > intentLife
}

// canWait reports whether a growth can leave the work of resumeCalls to a collection. canWait returns false if a call
// has an unknown outcome, or the registry has unconfirmed addresses. Otherwise, the comparison of a rebuilt registry
// with EC2 can wait while EC2 throttles. The comparison can also wait in the first 15 minutes after the rebuild,
// because a collection usually comes within minutes.
func (p *Node) canWait() bool {
	const collected = 15 * time.Minute
	s, err := p.Registry.View()
	return err == nil && len(book.Unknowns(s)) == 0 && !s.Rebuilt.Unconfirmed &&
		(known.Throttled(s) || time.Since(s.Rebuilt.Since) < collected)
}

// awaitTurns waits until this node may repeat the calls of the intents. After that, resumeCalls asks EC2 what the calls
// have done.
func (p *Node) awaitTurns(ctx context.Context, s *registry.State) error {
	for _, i := range s.Intents {
		if i.Action == book.ModifyAction || lease.ReleasesChosen(i) || !p.MakesENIs() {
			continue // the call can wait, or this process does not make it
		}
		if err := p.AwaitTurn(ctx, i.Action); err != nil {
			return err
		}
	}
	return nil
}

// reattach attaches an ENI that a growth has begun to make. If the ENI is for another pool, or does not fit this pool,
// reattach calls abandonENI instead. If the ENI may belong to the original plugin, and the role has no permission to
// attach it, reattach leaves the ENI alone.
func (p *Node) reattach(ctx context.Context, e aws.ENI) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	if book.PoolOf(e) != p.Policy.Pool || !p.fitsPool(s, e) {
		return p.abandonENI(ctx, e)
	}
	err = p.attachOurs(ctx, e, cmp.Or(book.TokenOf(s, e.ID), call.NewToken()),
		ENISpec{Pool: book.PoolOf(e), MinIndex: max(p.Policy.MinIndex, 1), Managed: e.Tags[book.TagManaged] == "true"},
		known.Attached{})
	_, known := s.ENIs[e.ID]
	if (errors.Is(err, errDiscarded) || known && noPlace(err)) && !errors.Is(err, aws.ErrNotRunning) {
		return nil // done: the new ENI is deleted, or the known ENI stays unattached, because the instance is full
	}
	if maybeOthers(s, e) && aws.NotAllowed(err) && !aws.MaybeDone(err) {
		slog.Warn("the role does not allow this node to attach an ENI that has no tags of this suite, so the node "+
			"passes over the ENI",
			"eni", e.ID, "error", err)
		return nil
	}
	return err
}

// fitsPool reports whether pods of the pool could get addresses of an ENI that is not attached yet.
func (p *Node) fitsPool(s *registry.State, e aws.ENI) bool {
	e.Instance = s.Instance.ID
	attached := book.Label(s.ENIs[e.ID], e)
	return p.Policy.Misfit(attached) == "" || p.Policy.Unclear(attached)
}

// maybeOthers reports whether an unattached ENI may belong to the original plugin. Such an ENI has no tags of ours, and
// no intent of this node names it. A good IAM policy permits changes only of ENIs with our tags.
func maybeOthers(s *registry.State, e aws.ENI) bool {
	return book.Untagged(e) && !s.ENIs[e.ID].Managed && !book.Begun(s, e.ID)
}

// abandonENI deletes an ENI that a growth has begun to make, because the caller of abandonENI does not need the ENI. An
// ENI without our tags may belong to the original plugin, and stays until an ADD needs it. An ENI of an operator's
// command also stays, because a repeated command continues with it.
func (p *Node) abandonENI(ctx context.Context, e aws.ENI) error {
	s, err := p.Registry.View()
	if err != nil || e.Tags[book.TagManaged] != "true" {
		return err
	}
	if _, known := s.ENIs[e.ID]; known {
		// An operator or another program has just detached this ENI, and pods may still have its addresses. A
		// collection deletes the ENI when no pod has an address of it.
		return nil
	}
	err = p.DeleteNow(ctx, e.ID)
	if errors.Is(err, aws.ErrInUse) { // the ENI is attached by now, so a later process must ask EC2 about it
		return p.Registry.Change(ctx, func(s *registry.State) {
			s.Intents[call.NewToken()] = attachIntent(s, e.ID)
		})
	}
	return err // also "not found", because EC2 perhaps does not find a new ENI yet
}

// EndBegun calls resumeCalls for a collection, if there is something to finish. If EC2 has throttled the attachment of
// a new ENI, EndBegun does nothing for at most ten minutes. The next ADD continues with this ENI: see KeepMade of
// package known. If EC2 throttles EndBegun, and an ADD waits, the next collection makes the remaining calls.
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
		return nil // EC2 throttles the attachment of this ENI, and the next ADD continues
	}
	if err := p.setAllDeleteOnTermination(ctx); err != nil {
		return err
	}
	q := *p
	q.Mode = call.Mode{Finishes: true, Until: p.Mode.Until}
	if _, err = q.resumeCalls(ctx, q.abandonENI); errors.Is(err, call.ErrGivesWay) {
		slog.Info("this collection leaves unfinished calls of earlier processes to the next collection", "reason", err)
		return nil
	}
	return err
}

// adoptAll finishes the creation of our ENIs in enis. It calls onUnattached with each unattached ENI. It records each
// attached ENI with all addresses that EC2 reports, and sets its DeleteOnTermination. If an ENI of others is not in the
// registry, adoptAll leaves the ENI to Learn. After an error, adoptAll deletes the kept answers of EC2, because an old
// answer may be the cause.
func (p *Node) adoptAll(
	ctx context.Context, s *registry.State, enis []aws.ENI, onUnattached func(context.Context, aws.ENI) error,
) (failed error) {
	ended := func(e aws.ENI, err error) error {
		p.ForgetUnlessThrottled(err)
		return fmt.Errorf("finish what an earlier process has begun with %s: %w", e.ID, err)
	}
	var ours, attached []aws.ENI
	for _, e := range enis {
		if !p.mustAdopt(s, e) {
			continue
		}
		e, known, err := p.withSubnetCIDRs(ctx, s, e)
		if err != nil {
			failed = ended(e, err) // returned at the end, because the ENIs in ours must be finished before
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
		if err := p.finishENI(ctx, s, e, onUnattached); err != nil {
			return ended(e, err)
		}
	}
	return failed
}

// mustAdopt reports whether adoptAll has to finish an ENI.
func (p *Node) mustAdopt(s *registry.State, e aws.ENI) bool {
	was, known := s.ENIs[e.ID]
	switch {
	case !known && e.Description != book.Description(s.Instance.ID), book.Leaving(known, e):
		return false
	case e.Status == "available" && was.Draining:
		return false // a collection has begun to delete the ENI, and the next collection continues
	case e.Status == "available" && was.NoLink(time.Now()):
		return false // the ENI was attached, and an operator or another program has detached it
	}
	// If this process must not create ENIs, an operator must attach or delete the unattached ENI.
	return e.Status != "available" || p.MakesENIs()
}

// finishENI calls onUnattached with an unattached ENI, and ensureDeleteOnTermination with an attached ENI of ours.
func (p *Node) finishENI(
	ctx context.Context, s *registry.State, e aws.ENI, onUnattached func(context.Context, aws.ENI) error,
) error {
	switch {
	case e.Status == "available":
		return onUnattached(ctx, e)
	case e.Description == book.Description(s.Instance.ID) && !e.DeleteOnTermination:
		return p.ensureDeleteOnTermination(ctx, e)
	}
	return nil
}

// learnOthers calls Learn if EC2 shows attached ENIs that are not in the registry, because metadata may show them by
// now.
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

// withSubnetCIDRs adds the CIDRs of the ENI's subnet to the ENI, because EC2's description of an ENI lacks them. If no
// source has the CIDRs, known is false, and the ENI serves no pods until metadata shows it.
func (p *Node) withSubnetCIDRs(ctx context.Context, s *registry.State, e aws.ENI) (_ aws.ENI, known bool, err error) {
	if e.CIDR.IsValid() || e.IPv6CIDR.IsValid() {
		return e, true, nil // this node has just created the ENI
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
		slog.Warn("the subnet of an ENI is not known: the ENI serves no pods until the metadata service shows the ENI",
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
