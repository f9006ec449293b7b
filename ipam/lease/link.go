// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The MTU of the boot ENI is given to the others if it is a sensible one, as the
// original does: 9001 inside a VPC (EC2 user guide, "Network MTU").
const minMTU, maxMTU = 1000, 9001

// LinkUp sets the link of an ENI up, with the boot ENI's MTU, and returns its name.
// It waits for a link that is not there yet.
func (p *Pool) LinkUp(ctx context.Context, id string) (string, error) {
	s, err := p.Registry.View()
	if err != nil {
		return "", err
	}
	return p.up(ctx, s, id)
}

// up is LinkUp for who has a state at hand.
func (p *Pool) up(ctx context.Context, s *registry.State, id string) (string, error) {
	link, err := p.link(ctx, s, id)
	if err != nil {
		return "", err
	}
	mtu := 0
	for boot, e := range s.ENIs {
		if e.Index == 0 && e.Card == 0 {
			l, err := p.link(ctx, s, boot)
			if err != nil {
				return "", fmt.Errorf("MTU of the boot ENI: %w", err)
			}
			mtu = sensible(l.MTU)
		}
	}
	if link.Up && (mtu == 0 || link.MTU == mtu) {
		return link.Name, nil
	}
	return link.Name, nl.Wiring{{NS: p.Host, Object: nl.Up{Dev: link.Name, MTU: mtu}}}.Add()
}

// link finds the link of an ENI: where it was the last time, or else by its MAC
// address, which costs a look at all links of the node.
func (p *Pool) link(ctx context.Context, s *registry.State, id string) (nl.Link, error) {
	eni := s.ENIs[id]
	if eni.Link != "" {
		if l, err := p.Host.LinkByName(eni.Link); err == nil && l.MAC == eni.MAC {
			return l, nil
		}
	}
	l, err := p.Host.LinkByMAC(ctx, eni.MAC)
	if err != nil {
		return l, err
	}
	return l, p.Registry.Change(ctx, func(s *registry.State) {
		if e, ok := s.ENIs[id]; ok {
			e.Link = l.Name
			s.ENIs[id] = e
		}
	})
}

// sensible is the MTU, or 0 if that is to be left alone.
func sensible(mtu int) int {
	if mtu < minMTU || mtu > maxMTU {
		return 0
	}
	return mtu
}
