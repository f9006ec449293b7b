// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file finds the slot for an ENI: EC2 says which slots are taken, and has the last word.

// An attached is EC2's answer to the question which ENIs are attached to this instance.
type attached struct {
	enis  []aws.ENI
	asked time.Time // zero: EC2 was not asked
	kept  bool      // an earlier process has asked
}

// lastAttached returns which ENIs are attached to this instance, by an answer of EC2 that a process
// has kept, or by a new one. It notes which are not.
func (p *Pool) lastAttached(ctx context.Context, s *registry.State) (seen attached, _ *registry.State, err error) {
	began := time.Now()
	seen.enis, seen.asked, err = p.attachedENIs(ctx, s.Instance.ID)
	if seen.kept = seen.asked.Before(began); err != nil || seen.kept {
		return seen, s, err
	}
	err = p.Registry.Change(ctx, func(now *registry.State) { noteAttached(now, seen.enis, seen.asked); s = now })
	return seen, s, err
}

// seeAttached is lastAttached with a new answer.
func (p *Pool) seeAttached(ctx context.Context, s *registry.State) (attached, *registry.State, error) {
	p.Registry.Drop(enisAnswer)
	return p.lastAttached(ctx, s)
}

// tracking returns the timeouts of connection tracking that are set on the boot ENI.
func (seen attached) tracking(s *registry.State) registry.Tracking {
	for _, e := range seen.enis {
		if book.IsBoot(s.ENIs[e.ID], e) {
			return registry.Tracking(e.Tracking)
		}
	}
	return registry.Tracking{}
}

// attachAnywhere attaches the ENI at a free slot. It needs to know which ENIs are attached,
// and asks EC2 if seen is too old. Another program may take the slot before the attach call:
// then EC2 refuses. So seen may be from before EC2 has throttled the calls since. In a large
// cluster, describes are throttled, too.
func (p *Pool) attachAnywhere(ctx context.Context, eni string, least int, seen attached) (attachment string, at slot, err error) {
	const fresh = time.Minute
	began := time.Now()
	if err := p.turn(ctx, book.AttachAction); err != nil {
		return "", at, err
	}
	s, err := p.describeInstance(ctx)
	if err != nil {
		return "", at, err
	}
	if time.Since(seen.asked) > fresh {
		if seen, s, err = p.lastAttached(ctx, s); err != nil {
			return "", at, err
		}
	}
	attachment, at, err = p.attachWhere(ctx, s, seen.enis, eni, least)
	full := errors.Is(err, aws.ErrInstanceFull)
	if !full && !errors.Is(err, aws.ErrCardFull) {
		return attachment, at, err
	}
	if kept := seen.kept; seen.asked.Before(began) { // others may have attached an ENI since
		if again, now, e := p.seeAttached(ctx, s); e == nil {
			seen, s = again, now
		}
		if kept && !seen.kept && !aws.MaybeDone(err) { // or detached one, minutes ago
			return p.attachAnywhere(ctx, eni, least, seen)
		}
	}
	if !aws.MaybeDone(err) {
		if e := p.noteFull(ctx, seen.enis, least, err); e != nil {
			return attachment, at, errors.Join(err, e)
		}
	}
	if full {
		if e := p.learnShown(ctx, s, seen.enis); e != nil {
			slog.Warn("attached ENIs could not be added to the registry: they serve no pods until the metadata service shows them", "error", e)
		}
	}
	return attachment, at, err
}

// attachWhere attaches the ENI at a slot that none of the attached ENIs has. If EC2 refuses the
// slot, attachWhere may try another one.
func (p *Pool) attachWhere(ctx context.Context, s *registry.State, attached []aws.ENI, eni string, least int) (attachment string, at slot, err error) {
	const tries = 5
	delete(s.ENIs, eni) // the slot that it had before somebody detached it is free
	free := slotsOf(s, least, attached)
	for range tries {
		next, found := free.next()
		if !found {
			return "", at, noneLeft(err)
		}
		at = next
		if attachment, err = p.attachAt(ctx, s.Instance.ID, eni, at); err == nil || aws.MaybeDone(err) || !free.refused(at, err) {
			return attachment, at, err
		}
	}
	return "", at, err
}

// attachAt attaches the ENI. EC2 may answer that it does not know an ENI that it has just
// created (hashicorp/terraform-provider-aws#35568). Then attachAt tries again for a while.
func (p *Pool) attachAt(ctx context.Context, instance, eni string, at slot) (attachment string, err error) {
	const young = 10 * time.Second
	for start := time.Now(); ; {
		// The caller notes a refusal: another network card may take the ENI.
		err = p.call(ctx, book.AttachAction, object{}, begins(registry.Intent{Action: book.AttachAction, ENI: eni}), func(*registry.State, string) (_ func(*registry.State), err error) {
			attachment, err = p.Cloud.AttachENI(ctx, eni, instance, at.card, at.index)
			return func(*registry.State) {}, err
		})
		if !errors.Is(err, aws.ErrNotFound) || time.Since(start) > young {
			return attachment, err
		}
		if e := sleep(ctx, p.backoff(0), "attach "+eni); e != nil {
			return "", errors.Join(err, e)
		}
	}
}
