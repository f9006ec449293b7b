// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// resume brings to an end what an earlier process, which died or lost EC2's answer,
// has begun. Its caller holds the lock "grow", so every intent is such a one's. Without
// intents, which is nearly always, it asks nobody.
func (p *Pool) resume(ctx context.Context) error {
	s, err := p.Registry.View()
	if err != nil || len(s.Intents) == 0 {
		return err
	}
	enis, err := p.ours(ctx, s)
	if err != nil {
		return fmt.Errorf("resume %s: %w", slices.Collect(maps.Values(s.Intents))[0].Action, err)
	}
	for _, e := range enis {
		if err := p.adopt(ctx, s, e); err != nil {
			return fmt.Errorf("resume with %s: %w", e.ID, err)
		}
	}
	return p.update(ctx, func(s *registry.State) {
		maps.DeleteFunc(s.Intents, func(_ string, i registry.Intent) bool {
			found := slices.ContainsFunc(enis, func(e aws.ENI) bool { return e.ID == i.ENI })
			return found && i.Action != "ModifyNetworkInterfaceAttribute" || time.Since(i.Since) > intentLife
		})
	})
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
func (p *Pool) adopt(ctx context.Context, s *registry.State, e aws.ENI) error {
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
		return p.attach(ctx, e, newToken(), ENISpec{Pool: poolOf(e), MinIndex: max(p.Policy.MinIndex, 1), Managed: e.Tags[TagManaged] == "true"})
	}
	if _, known := s.ENIs[e.ID]; known || mine {
		err := p.update(ctx, func(s *registry.State) {
			_, known := s.ENIs[e.ID]
			record(s, e, e.Tags[TagManaged] == "true", time.Now())
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
