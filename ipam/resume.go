// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// resume brings to an end what an earlier process, which died or lost EC2's answer,
// has begun. Its caller holds the lock "grow", so every intent is such a one's. Without
// intents, which is nearly always, it asks nobody. An ENI that was to be attached is
// given to stray. It tells whether addresses that were in doubt are so no more.
func (p *Pool) resume(ctx context.Context, stray func(context.Context, aws.ENI) error) (sure bool, err error) {
	s, err := p.Registry.View()
	if err != nil || !due(s) || lease.Unknown(s) {
		return false, err
	}
	enis, err := p.ours(ctx, s)
	if errors.Is(err, aws.ErrDenied) && onlyLooks(s) {
		return p.settleBlindly(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("resume %s: %w", slices.Collect(maps.Values(s.Intents))[0].Action, err)
	}
	for _, e := range enis {
		if err := p.adopt(ctx, s, e, stray); err != nil {
			return false, fmt.Errorf("resume with %s: %w", e.ID, err)
		}
	}
	err = p.Registry.Change(ctx, func(s *registry.State) {
		if since, ok := s.Doubt(); ok && time.Since(since) > settled {
			sure = true
			settle(s, enis, since)
			dropUnseen(s, enis, since)
		}
		maps.DeleteFunc(s.Intents, func(_ string, i registry.Intent) bool {
			found := i.Action == lookBack || later(i) && time.Since(i.Since) > settled || slices.ContainsFunc(enis, func(e aws.ENI) bool { return e.ID == i.ENI })
			return found && i.Action != modify || time.Since(i.Since) > intentLife
		})
	})
	return sure, err
}

// reattach ends what a growth has begun: the ENI is attached after all, unless it would
// take another pool's place.
func (p *Pool) reattach(ctx context.Context, e aws.ENI) error {
	if poolOf(e) != p.Policy.Pool && e.Tags[TagManaged] == "true" {
		return p.abandon(ctx, e)
	}
	err := p.attach(ctx, e, newToken(), ENISpec{Pool: poolOf(e), MinIndex: max(p.Policy.MinIndex, 1), Managed: e.Tags[TagManaged] == "true"})
	if errors.Is(err, errDiscarded) && !errors.Is(err, aws.ErrNotRunning) {
		return nil // several were begun, and there is no room for all: that is an end, too
	}
	return err
}

// abandon ends it in the other way: a collection has no use for another ENI. One without
// our tags may be the original's, and waits for an ADD that needs it.
func (p *Pool) abandon(ctx context.Context, e aws.ENI) error {
	if e.Tags[TagManaged] != "true" {
		return nil
	}
	err := p.Cloud.DeleteENI(ctx, e.ID)
	if errors.Is(err, aws.ErrInUse) {
		return nil // EC2 has shown what it was
	}
	return err // not found: it may also be too new
}

// endBegun does what resume does for the next growth, if there is something to do and
// no growth is under way.
func (p *Pool) endBegun(ctx context.Context) error {
	s, err := p.Registry.View()
	if err != nil || !due(s) {
		return err
	}
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return err
	}
	defer unlock()
	_, err = p.resume(ctx, p.abandon)
	return err
}

// ours lists the ENIs that are attached to this instance, and those that were made
// for it and are not.
func (p *Pool) ours(ctx context.Context, s *registry.State) ([]aws.ENI, error) {
	attached, err := p.Cloud.DescribeENIs(ctx, aws.ByInstance(s.Instance.ID))
	if err != nil {
		return nil, err
	}
	strays, err := p.Cloud.DescribeENIs(ctx, aws.ByDescription(description(s.Instance.ID)), aws.ByStatus("available"))
	return append(attached, strays...), err
}

// adopt makes an ENI of ours what it was meant to be: attached, gone with the
// instance, and in the registry with all the addresses that EC2 says it has.
func (p *Pool) adopt(ctx context.Context, s *registry.State, e aws.ENI, stray func(context.Context, aws.ENI) error) error {
	mine := e.Description == description(s.Instance.ID)
	if e.CIDR, e.IPv6CIDR = s.ENIs[e.ID].CIDR, s.ENIs[e.ID].CIDR6; !e.CIDR.IsValid() && !e.IPv6CIDR.IsValid() {
		subnets, err := p.Cloud.Subnets(ctx, e.VPC, s.Instance.Zone)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(subnets, func(n aws.Subnet) bool { return n.ID == e.Subnet })
		if i < 0 {
			return fmt.Errorf("subnet %s of %s: %w", e.Subnet, e.ID, aws.ErrNotFound)
		}
		e.CIDR, e.IPv6CIDR = subnets[i].CIDR, subnets[i].IPv6CIDR
	}
	if e.Status == "available" {
		if s.ENIs[e.ID].Draining {
			return nil // a collection was about to delete it, and will
		}
		return stray(ctx, e)
	}
	if _, known := s.ENIs[e.ID]; known || mine {
		used := p.Used()
		err := p.Registry.Change(ctx, func(s *registry.State) {
			was, known := s.ENIs[e.ID]
			record(s, e, was.Managed)
			s.ENIs[e.ID] = label(s.ENIs[e.ID], e)
			addAll(s, e, used)
			if !known {
				serve(s, e.ID, poolOf(e))
			}
		})
		if err != nil {
			return err
		}
	}
	if mine && !e.DeleteOnTermination {
		return p.deleteOnTermination(ctx, e.ID, e.Attachment, tokenOf(s, e.ID))
	}
	return nil
}

// tokenOf is the key of the intent about an ENI.
func tokenOf(s *registry.State, eni string) string {
	for token, i := range s.Intents {
		if i.ENI == eni {
			return token
		}
	}
	return ""
}
