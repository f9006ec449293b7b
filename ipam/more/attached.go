// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file finds the slot for an ENI. EC2 says which slots are taken, and may still refuse a free slot.

// AttachAnywhere attaches the ENI on.ENI at a free slot, whose device index is not lower than least. seen has the ENIs
// that are attached. If seen is older than a minute, AttachAnywhere gets a newer answer of EC2, which may be a kept
// answer. A kept answer is good enough: if another program has taken the slot since, EC2 refuses the slot. In a large
// cluster, EC2 also throttles describes.
func (p *Node) AttachAnywhere(
	ctx context.Context, on call.Object, least int, seen known.Attached,
) (attachment string, at Slot, err error) {
	const fresh = time.Minute
	began := time.Now()
	if err := p.Turn(ctx, book.AttachAction); err != nil {
		return "", at, err
	}
	s, err := p.DescribeInstance(ctx)
	if err != nil {
		return "", at, err
	}
	if time.Since(seen.Asked) > fresh {
		if seen, s, err = p.LastAttached(ctx, s); err != nil {
			return "", at, err
		}
	}
	attachment, at, err = p.attachWhere(ctx, s, seen.ENIs, on, least)
	full := errors.Is(err, aws.ErrInstanceFull)
	if !full && !errors.Is(err, aws.ErrCardFull) {
		return attachment, at, err
	}
	if kept := seen.Kept; seen.Asked.Before(began) { // another program may have attached an ENI since
		if again, now, e := p.SeeAttached(ctx, s); e == nil {
			seen, s = again, now
		}
		// a kept answer may be minutes old: another program may also have detached an ENI since
		if kept && !seen.Kept && !aws.MaybeDone(err) {
			return p.AttachAnywhere(ctx, on, least, seen)
		}
	}
	if !aws.MaybeDone(err) {
		if e := p.noteFull(ctx, seen.ENIs, least, err); e != nil {
			return attachment, at, errors.Join(err, e)
		}
	}
	if full {
		if e := p.LearnShown(ctx, s, seen.ENIs); e != nil {
			slog.Warn("attached ENIs could not be added to the registry: they serve no pods until the metadata "+
				"service shows them", "error", e)
		}
	}
	return attachment, at, err
}

// attachWhere attaches the ENI at a slot that none of the attached ENIs has. If EC2 refuses the
// slot, attachWhere may try another one.
func (p *Node) attachWhere(
	ctx context.Context, s *registry.State, attached []aws.ENI, on call.Object, least int,
) (attachment string, at Slot, err error) {
	const tries = 5
	delete(s.ENIs, on.ENI) // an operator or another program has detached the ENI, so its old slot is free
	free := slotsOf(s, least, attached)
	for range tries {
		next, found := free.next()
		if !found {
			return "", at, noneLeft(err)
		}
		at = next
		if attachment, err = p.attachAt(ctx, s.Instance.ID, on, at); err == nil || aws.MaybeDone(err) ||
			!free.refused(at, err) {
			return attachment, at, err
		}
	}
	return "", at, err
}

// attachAt attaches the ENI. EC2 may answer that it does not know an ENI that it has just
// created (hashicorp/terraform-provider-aws#35568). Then attachAt tries again for a while.
func (p *Node) attachAt(
	ctx context.Context, instance string, on call.Object, at Slot,
) (attachment string, err error) {
	const young = 10 * time.Second
	for start := time.Now(); ; {
		// The caller records a refusal of the ENI, because another network card may take the ENI.
		begin := call.Begins(registry.Intent{Action: book.AttachAction, ENI: on.ENI})
		do := func(*registry.State, string) (_ func(*registry.State), err error) {
			attachment, err = p.Cloud.AttachENI(ctx, on.ENI, instance, at.Card, at.Index)
			return func(*registry.State) {}, err
		}
		err = p.Call(ctx, book.AttachAction, call.Object{Handled: on.Handled}, begin, do)
		if !errors.Is(err, aws.ErrNotFound) || time.Since(start) > young {
			return attachment, err
		}
		if e := call.Sleep(ctx, p.Backoff(0), "attach "+on.ENI); e != nil {
			return "", errors.Join(err, e)
		}
	}
}
