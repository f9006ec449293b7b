// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// severalCards returns cards, or nil if the instance has only one network card.
func severalCards(cards []int) []int {
	if len(cards) < 2 {
		return nil
	}
	return cards
}

// Limit copies the limits of the instance's type into the registry's entry of the instance.
func Limit(i *registry.Instance, l aws.Limits) {
	i.ENIs, i.IPv4PerENI, i.IPv6PerENI = l.ENIs, l.IPv4PerENI, l.IPv6PerENI
	i.NoPrefixes, i.Cards = l.NoPrefixes, severalCards(l.Cards)
}

// DescribeInstance returns the state of the registry with the instance and the limits of its type. If the state lacks
// the instance or the limits, DescribeInstance asks metadata or EC2.
func (p *Node) DescribeInstance(ctx context.Context) (*registry.State, error) {
	s, err := p.Registry.View()
	if err == nil && lease.Unknown(s) {
		err = p.Learn(ctx)
	}
	if err == nil {
		s, err = p.Registry.View()
	}
	if err != nil || s.Instance.ENIs > 0 {
		return s, err
	}
	limits, ahead, err := answered[aws.Limits](p.Ahead, limitsAnswer)
	if !ahead {
		limits, err = p.DescribeLimits(ctx, s.Instance.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("ask EC2 for the limits of %s: %w", s.Instance.Type, err)
	}
	err = p.Registry.Update(ctx, func(now *registry.State) error {
		Limit(&now.Instance, limits)
		s = now
		return nil
	})
	return s, err
}

// MakesENIs reports whether this node may create, change and delete ENIs. A collection without a configuration does not
// know this. MakesENIs then returns true, and EC2 refuses what the role must not do.
func (p *Node) MakesENIs() bool {
	return p.Policy.Provision == lease.ProvisionFull || p.Policy.Provision == ""
}
