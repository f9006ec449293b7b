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

// The functions of this file find the slot for an ENI. EC2 may refuse even a free slot.

// AttachAnywhere attaches the ENI of target at a free slot whose device index is not lower than minIndex. The argument
// answer is EC2's answer about the attached ENIs. If this answer is older than a minute, AttachAnywhere gets another
// answer from LastAttached. If another program has taken the slot meanwhile, EC2 refuses the slot.
func (p *Node) AttachAnywhere(
	ctx context.Context, target call.Object, minIndex int, answer known.Attached,
) (attachment string, at Slot, err error) {
	const fresh = time.Minute
	began := time.Now()
	if err := p.AwaitTurn(ctx, book.AttachAction); err != nil {
		return "", at, err
	}
	s, err := p.DescribeInstance(ctx)
	if err != nil {
		return "", at, err
	}
	if time.Since(answer.Asked) > fresh {
		if answer, s, err = p.LastAttached(ctx, s); err != nil {
			return "", at, err
		}
	}
	attachment, at, err = p.attachAtFree(ctx, s, answer.ENIs, target, minIndex)
	full := errors.Is(err, aws.ErrInstanceFull)
	if !full && !errors.Is(err, aws.ErrCardFull) {
		return attachment, at, err
	}
	if kept := answer.Kept; answer.Asked.Before(began) { // another program may have attached an ENI since then
		if again, now, e := p.SeeAttached(ctx, s); e == nil {
			answer, s = again, now
		}
		// A kept answer may be minutes old, so another program may have detached an ENI since then.
		if kept && !answer.Kept && !aws.MaybeDone(err) {
			return p.AttachAnywhere(ctx, target, minIndex, answer)
		}
	}
	if !aws.MaybeDone(err) {
		if e := p.noteFull(ctx, answer.ENIs, minIndex, err); e != nil {
			return attachment, at, errors.Join(err, e)
		}
	}
	if full {
		if e := p.LearnShown(ctx, s, answer.ENIs); e != nil {
			slog.Warn("attached ENIs could not be added to the registry: they serve no pods until the metadata "+
				"service shows them", "error", e)
		}
	}
	return attachment, at, err
}

// attachAtFree attaches the ENI at a free slot. The ENIs in attached take slots.
func (p *Node) attachAtFree(
	ctx context.Context, s *registry.State, attached []aws.ENI, target call.Object, minIndex int,
) (attachment string, at Slot, err error) {
	const tries = 5
	delete(s.ENIs, target.ENI) // an operator or another program has detached the ENI, so its old slot is free
	free := slotsOf(s, minIndex, attached)
	for range tries {
		next, found := free.nextFree()
		if !found {
			return "", at, noSlotError(err)
		}
		at = next
		if attachment, err = p.attachAt(ctx, s.Instance.ID, target, at); err == nil || aws.MaybeDone(err) ||
			!free.recordRefusal(at, err) {
			return attachment, at, err
		}
	}
	return "", at, err
}

// attachAt attaches the ENI. EC2 perhaps does not know an ENI that it has just created
// (hashicorp/terraform-provider-aws#35568), so attachAt tries again for a while.
func (p *Node) attachAt(
	ctx context.Context, instance string, target call.Object, at Slot,
) (attachment string, err error) {
	const young = 10 * time.Second
	for start := time.Now(); ; {
		// The Object has no ENI, so that p.Call does not record a refusal: another network card may accept the ENI.
		begin := func(s *registry.State) (string, bool) { return call.NewIntent(attachIntent(s, target.ENI))(s) }
		do := func(*registry.State, string) (_ func(*registry.State), err error) {
			attachment, err = p.Cloud.AttachENI(ctx, target.ENI, instance, at.Card, at.Index)
			return func(*registry.State) {}, err
		}
		err = p.Call(ctx, book.AttachAction, call.Object{Handled: target.Handled}, begin, do)
		if !errors.Is(err, aws.ErrNotFound) || time.Since(start) > young {
			return attachment, err
		}
		if e := call.Sleep(ctx, p.Backoff(0), "attach "+target.ENI); e != nil {
			return "", errors.Join(err, e)
		}
	}
}
