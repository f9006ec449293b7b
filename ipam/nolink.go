// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is about ENIs whose link is not on the node: see lease.Pool.Obtain. A growth does
// not use them, and names them when it fails. It asks EC2 whether they are still attached. If
// an ENI is not attached, it takes no slot. When no pod has an address of it, it is removed
// from the registry.

// withPassedOver adds to the error of a growth the ENIs of the pool that it could not use.
func (p *Pool) withPassedOver(err error) error {
	if err == nil {
		return nil
	}
	s, e := p.Registry.View()
	if e != nil {
		return err
	}
	over := []error{err}
	for _, id := range withoutLink(s) {
		if e := s.ENIs[id]; e.Pool == p.Policy.Pool && p.Policy.Serves(e) {
			over = append(over, fmt.Errorf("%s (%s) is passed over: %w since %s", id, e.MAC, lease.ErrNoLink, e.Missed.Format(time.RFC3339)))
		}
	}
	if len(over) == 1 {
		return err
	}
	advice, code := lease.HintNoLink, uint(plugin.CodeTryAgain)
	if first := Hint(err); first != "" {
		advice = first + "; " + advice
	}
	if e, ok := errors.AsType[*plugin.Error](err); ok {
		code = e.Code // what is passed over explains the failure, and changes nothing about it
	}
	return plugin.Errorf(code, advice, "%w", errors.Join(over...))
}

// withoutLink lists the ENIs whose link is not on the node, except those that a collection
// deletes.
func withoutLink(s *registry.State) []string {
	now := time.Now()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.ENIs)), func(id string) bool {
		e := s.ENIs[id]
		return !e.NoLink(now) || e.Draining
	})
}

// noteDetached asks EC2 which ENIs are attached to this instance. It does so if the link of
// an ENI is not on the node, also if a pod has it, or if the caller has another reason. If EC2 does not answer, all
// ENIs count as attached.
func (p *Pool) noteDetached(ctx context.Context, reason bool) {
	s, err := p.Registry.View()
	missed := func(e registry.ENI) bool { return !e.Missed.IsZero() && !e.Draining }
	reason = reason || err == nil && (slices.ContainsFunc(slices.Collect(maps.Values(s.ENIs)), missed) || len(s.Exclusive()) > 0)
	if err != nil || !reason || p.Policy.Provision == lease.ProvisionNone {
		return
	}
	const patience = 5 * time.Second // growth and collections can do without
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	asked := time.Now()
	attached, err := p.describeENIs(waiting, aws.ByInstance(s.Instance.ID))
	if err == nil {
		err = p.Registry.Change(ctx, func(s *registry.State) { noteAttached(s, attached, asked) })
	}
	if err != nil {
		slog.Warn("EC2 did not list the attached ENIs: ENIs without a link on the node count as attached", "enis", withoutLink(s), "error", err)
	}
}

// noteAttached records which ENIs EC2 showed as attached to this instance, and which it did
// not show. EC2 may not show a new ENI yet: then its link will come. The link of somebody
// else's ENI proves nothing, because it may be in another namespace.
func noteAttached(s *registry.State, attached []aws.ENI, asked time.Time) {
	here := slices.DeleteFunc(slices.Clone(attached), func(e aws.ENI) bool { return e.Instance != s.Instance.ID })
	inPods := s.Exclusive()
	for id, e := range s.ENIs {
		shown := slices.ContainsFunc(here, func(a aws.ENI) bool { return a.ID == id })
		old := e.Grown.Before(asked.Add(-settled))
		e.Detached = !shown && e.Detachable() && (e.NoLink(asked) || old && (e.Foreign || inPods[id] || !e.Missed.IsZero()))
		s.ENIs[id] = e
	}
	s.Instance.FullRead = asked
	if len(here) < s.Instance.FullWith {
		s.Instance.FullUntil, s.Instance.FullWith = time.Time{}, 0
	}
}

// detached lists the ENIs that are no longer attached to this instance.
func detached(s *registry.State) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.ENIs)), func(id string) bool {
		e := s.ENIs[id]
		return !e.Detached || e.Draining || !e.Foreign && e.Missed.IsZero()
	})
}

// forgetDetached removes detached ENIs from the registry when no pod has an address of them.
// An ENI that this node has created, and that is attached nowhere, stays: a collection
// deletes it.
func (p *Pool) forgetDetached(ctx context.Context) error {
	p.noteDetached(ctx, false)
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	var failed error
	for _, id := range detached(s) {
		if e := s.ENIs[id]; !book.AnyLeased(s, e.Has) {
			failed = errors.Join(failed, p.forgetIfLost(ctx, id, e))
		}
	}
	return failed
}

// forgetIfLost removes a detached ENI from the registry, unless this node must delete it, or
// it is attached here after all.
func (p *Pool) forgetIfLost(ctx context.Context, id string, e registry.ENI) error {
	enis, err := p.describeENIs(ctx, aws.ByID(id))
	if err != nil && !errors.Is(err, aws.ErrNotFound) {
		return fmt.Errorf("look where %s is: %w", id, err)
	}
	here := func(s *registry.State) bool { return len(enis) > 0 && enis[0].Instance == s.Instance.ID }
	ours := len(enis) > 0 && enis[0].Status == "available" && (e.Managed || enis[0].Tags[book.TagManaged] == "true")
	return p.Registry.Change(ctx, func(s *registry.State) {
		e, known := s.ENIs[id]
		switch {
		case !known:
		case here(s):
			e.Detached = false
			s.ENIs[id] = e
		case ours: // it may have been learnt of when EC2 did not tell its tags
			s.ENIs[id] = book.Label(e, enis[0])
		case len(enis) == 0 && (time.Since(e.Grown) <= settled || time.Since(e.Missed) <= settled):
			// EC2 may not show it for a moment
		case slices.Contains(detached(s), id) && !book.AnyLeased(s, e.Has):
			slog.Warn("somebody has detached an ENI from this instance: it was removed from the registry", "eni", id)
			s.Drop(id)
		}
	})
}
