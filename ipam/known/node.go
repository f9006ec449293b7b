// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// several returns the cards of an instance that has more than one. Otherwise it returns nil,
// and the registry records nothing.
func several(cards []int) []int {
	if len(cards) < 2 {
		return nil
	}
	return cards
}

// DescribeInstance returns the state, with the limits of the instance in it.
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
	limits, err := p.DescribeLimits(ctx, s.Instance.Type)
	if err != nil {
		return nil, fmt.Errorf("limits of %s: %w", s.Instance.Type, err)
	}
	err = p.Registry.Update(ctx, func(now *registry.State) error {
		i := &now.Instance
		i.ENIs, i.IPv4PerENI, i.IPv6PerENI = limits.ENIs, limits.IPv4PerENI, limits.IPv6PerENI
		now.Instance.NoPrefixes, now.Instance.Cards = limits.NoPrefixes, several(limits.Cards)
		s = now
		return nil
	})
	return s, err
}

// MakesENIs reports whether this node may create, change and delete ENIs. A collection
// without a configuration tries.
func (p *Node) MakesENIs() bool {
	return p.Policy.Provision == lease.ProvisionFull || p.Policy.Provision == ""
}
