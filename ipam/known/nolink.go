// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// WithoutLink lists the ENIs whose link is not on the node. It leaves out draining ENIs, which a collection deletes.
func WithoutLink(s *registry.State) []string {
	now := time.Now()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.ENIs)), func(id string) bool {
		e := s.ENIs[id]
		return !e.NoLink(now) || e.Draining
	})
}

// NoteDetached asks EC2 which ENIs are attached to this instance, and records the answer. It asks only if force is
// true, if the link of an ENI is missing, or if a pod has a whole ENI.
func (p *Node) NoteDetached(ctx context.Context, force bool) {
	s, err := p.Registry.View()
	missed := func(e registry.ENI) bool { return !e.Missed.IsZero() && !e.Draining }
	force = force || err == nil &&
		(slices.ContainsFunc(slices.Collect(maps.Values(s.ENIs)), missed) || len(s.Exclusive()) > 0)
	if err != nil || !force || p.TrustsMetadata() {
		return
	}
	const patience = 5 * time.Second // growth and collections can continue without the answer
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	asked := time.Now()
	attached, err := p.DescribeENIs(waiting, aws.ByInstance(s.Instance.ID))
	if err == nil {
		err = p.Registry.Change(ctx, func(s *registry.State) { NoteAttached(s, attached, asked) })
	}
	if err != nil {
		slog.Warn("EC2 did not list the attached ENIs: ENIs without a link on the node count as attached",
			"enis", WithoutLink(s), "error", err)
	}
}

// NoteAttached records which ENIs EC2 showed as attached to this instance. An ENI that EC2 did not show may be
// detached, or too new for EC2's answer. So it counts as detached only if its link is missing, too. The link of a
// foreign ENI, or of a whole ENI of a pod, may be in another namespace. A draining ENI serves no pods. If EC2 did not
// show such an ENI, and the ENI is not new, it counts as detached.
func NoteAttached(s *registry.State, attached []aws.ENI, askedAt time.Time) {
	askedAt = registry.ToCurrentClock(askedAt)
	here := slices.DeleteFunc(slices.Clone(attached), func(e aws.ENI) bool { return e.Instance != s.Instance.ID })
	inPods := s.Exclusive()
	for id, e := range s.ENIs {
		shown := slices.ContainsFunc(here, func(a aws.ENI) bool { return a.ID == id })
		old := !MayLack(e.Grown, askedAt)
		if !shown && (e.NoLink(askedAt) || old && (e.Foreign || e.Draining || inPods[id] || !e.Missed.IsZero())) {
			e.Detach()
		} else {
			e.Attach()
		}
		s.ENIs[id] = e
	}
	s.Instance.FullRead = askedAt
	if len(here) < s.Instance.FullWith {
		s.Instance.FullUntil, s.Instance.FullWith = time.Time{}, 0
	}
}

// detachedENIs lists the ENIs that are no longer attached to this instance. It leaves out draining ENIs.
func detachedENIs(s *registry.State) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.ENIs)), func(id string) bool {
		e := s.ENIs[id]
		return !e.Detached || e.Draining || !e.Foreign && e.Missed.IsZero()
	})
}

// ForgetDetached removes detached ENIs from the registry if no pod has an address of them. An unattached ENI that this
// node has created stays until a collection deletes it.
func (p *Node) ForgetDetached(ctx context.Context) error {
	p.NoteDetached(ctx, false)
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	var failed error
	for _, id := range detachedENIs(s) {
		if e := s.ENIs[id]; !book.AnyLeased(s, e.Has) {
			failed = errors.Join(failed, p.forgetIfLost(ctx, id, e))
		}
		if aws.Stops(failed) {
			break
		}
	}
	return failed
}

// forgetIfLost does what ForgetDetached does, for one ENI. If EC2 now shows the ENI as attached to this instance, it
// stays.
func (p *Node) forgetIfLost(ctx context.Context, id string, e registry.ENI) error {
	enis, err := p.DescribeENIs(ctx, aws.ByID(id))
	if err != nil && !errors.Is(err, aws.ErrNotFound) {
		return fmt.Errorf("ask EC2 where %s is: %w", id, err)
	}
	here := func(s *registry.State) bool { return len(enis) > 0 && enis[0].Instance == s.Instance.ID }
	ours := len(enis) > 0 && enis[0].Status == "available" && (e.Managed || enis[0].Tags[book.TagManaged] == "true")
	return p.Registry.Change(ctx, func(s *registry.State) {
		e, known := s.ENIs[id]
		switch {
		case !known:
		case here(s):
			e.Attach()
			s.ENIs[id] = e
		case ours:
			// The ENI stays until a collection deletes it. The registry perhaps lacks the tags of the ENI, and EC2
			// reports them now.
			s.ENIs[id] = book.Label(e, enis[0])
		case len(enis) == 0 && (time.Since(e.Grown) <= Settled || time.Since(e.Missed) <= Settled):
			// EC2's descriptions lag, so the ENI may exist although EC2 does not show it
		case slices.Contains(detachedENIs(s), id) && !book.AnyLeased(s, e.Has):
			slog.Warn("an operator or another program has detached an ENI from this instance: this node "+
				"removes the ENI from its registry", "eni", id)
			s.Drop(id)
		}
	})
}
