// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The functions of this file detach the ENIs for which pods had asked, when no pod uses them any more. An operator or
// another program owns these ENIs, so the node does not delete them.

// DetachUnused detaches the ENIs for which pods had asked, if no pod uses them now, and returns their IDs. A DEL leaves
// a mark that soon starts DetachUnused, because a pod of another node may want the ENI.
func (p *Node) DetachUnused(ctx context.Context) ([]string, error) {
	s, err := p.Registry.View()
	if err != nil || !lease.AnyUnused(s) || p.Policy.Provision == lease.ProvisionNone {
		return nil, err
	}
	unlock, err := p.Registry.Lock(ctx, "collect")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := p.OfThisInstance(ctx); err != nil {
		return nil, err
	}
	used, err := p.InUse()
	if err != nil {
		return nil, err
	}
	return p.detachIdle(ctx, used)
}

// detachIdle does the work of DetachUnused. Its caller holds the lock "collect".
func (p *Node) detachIdle(ctx context.Context, used lease.Used) (done []string, failed error) {
	s, err := p.Registry.View()
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		if !p.mustDetach(s, id, used) { // saves the steps of detachIfIdle for most ENIs
			continue
		}
		detached, err := p.detachIfIdle(ctx, id, used)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("detach %s, which no pod uses any more: %w", id, err))
		}
		if detached {
			done = append(done, id)
		}
		if aws.Stops(err) {
			break
		}
	}
	return done, failed
}

// detachIfIdle detaches an ENI if no pod uses it any more.
func (p *Node) detachIfIdle(ctx context.Context, id string, used lease.Used) (detached bool, err error) {
	mayMark := func(s *registry.State) bool { return p.mustDetach(s, id, used) }
	m, err := p.markDraining(ctx, id, mayMark, func(e *registry.ENI) {
		e.Drain()
		e.Request() // with this, no collection deletes the ENI, even if the configuration changes later
	})
	if err != nil || !m.isMarked {
		return false, err
	}
	err = p.detachChosen(ctx, id, used, m)
	return err == nil && p.isForgotten(id), err // detachChosen also returns nil if the ENI stays for a pod
}

// mustDetach returns true if pods had asked for the ENI, but no pod uses it or waits for it any more.
func (p *Node) mustDetach(s *registry.State, id string, used lease.Used) bool {
	e := s.ENIs[id]
	return (e.OnRequest || p.Policy.Requestable(e.Tags)) && e.Detachable() && !e.Foreign &&
		!lease.Awaited(s, id, time.Now()) && unused(s, id, used)
}

// unused reports whether no lease, and nothing in the kernel, uses the ENI. If a namespace cannot be read, it returns
// false.
func unused(s *registry.State, id string, used lease.Used) bool {
	e := s.ENIs[id]
	for a, l := range s.Leases.All() {
		if l.ENI == id || e.Has(a) {
			return false
		}
	}
	return !used.Partial && !used.InPod(e.MAC) && !used.Any(e.MAC, e.Has)
}

// detachChosen detaches an ENI, waits until EC2 has detached it, and removes it from the registry. Before each step, it
// looks at EC2's description of the ENI. The ENI stays on this node if a pod uses it by now, or if its owner forbids
// changes.
func (p *Node) detachChosen(ctx context.Context, id string, used lease.Used, m markedENI) error {
	const every = time.Second
	ending := false                      // EC2 says that an earlier process has begun to detach the ENI
	for detached := ""; ; m.seen = nil { // the ID of the attachment that this process has ended
		enis, err := m.seen, error(nil)
		if enis == nil {
			enis, err = p.DescribeENIs(ctx, aws.ByID(id))
		}
		if err != nil && !errors.Is(err, aws.ErrNotFound) {
			return err
		}
		s, err := p.Registry.View()
		if err != nil {
			return err
		}
		if detached == "" && !ending && maybeHidden(s, id, enis) {
			if err := p.awaitEC2(ctx, every, "wait for EC2 to show where "+id+" is"); err != nil {
				return err
			}
			continue
		}
		if len(enis) == 0 || enis[0].Instance != s.Instance.ID {
			return p.Forget(ctx, id)
		}
		if book.Foreign(enis[0]) || usedError(s, enis[0], used) != nil {
			return p.undrain(ctx, id)
		}
		if detached != "" && detached != enis[0].Attachment { // another process or an operator has attached it
			return p.Registry.Change(ctx, func(s *registry.State) { s.Edit(id, (*registry.ENI).Undrain) })
		}
		if detached == "" {
			err := p.detachENI(ctx, enis[0])
			if ending = inTransition(err); ending {
				m.wasMarked = true
				if err := p.awaitEC2(ctx, 3*every, "wait for EC2 to finish its work on "+id); err != nil {
					return err
				}
				continue
			}
			if m.staysAttached(err) {
				return errors.Join(err, p.undrain(context.WithoutCancel(ctx), id))
			}
			if err != nil && !errors.Is(err, aws.ErrNotFound) {
				return err
			}
			detached = enis[0].Attachment
			slog.Info("this node has begun to detach an ENI, because no pod uses the ENI", "eni", id)
			continue // EC2 often detaches an ENI at once
		}
		if err := p.awaitEC2(ctx, every, "wait for "+id+" to be detached"); err != nil {
			return err
		}
	}
}

// maybeHidden reports whether this node may have attached an ENI, although EC2 does not show that yet.
func maybeHidden(s *registry.State, id string, enis []aws.ENI) bool {
	shown := len(enis) > 0 && enis[0].Instance != ""
	return !shown && time.Since(s.ENIs[id].Grown) <= known.Settled
}
