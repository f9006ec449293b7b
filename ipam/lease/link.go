// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// If the MTU of the boot ENI's link is within these limits, the links of all other ENIs get this MTU. The original
// plugin did the same. Inside a VPC, 9001 is possible (EC2 user guide, "Network MTU").
const minMTU, maxMTU = 1000, 9001

// LinkUp sets the link of an ENI up, and returns its name. The link gets the boot ENI's MTU if no pod uses the link.
// LinkUp waits for the link of a new ENI. If that link does not appear, the error is [ErrNoLink]. If an earlier pod had
// the link, LinkUp first restores the settings of the link. If LinkUp cannot restore them, the error is [ErrKept].
func (p *Pool) LinkUp(ctx context.Context, id string) (string, error) {
	s, err := p.Registry.View()
	if err != nil {
		return "", err
	}
	return p.up(ctx, s, id)
}

// up does what LinkUp does, for a caller that has read the state.
func (p *Pool) up(ctx context.Context, s *registry.State, id string) (string, error) {
	link, err := p.link(ctx, s, id)
	if errors.Is(err, fs.ErrNotExist) {
		link, err = p.await(ctx, s.ENIs[id], id)
	}
	if err != nil {
		return "", err
	}
	if err := p.settle(ctx, s.ENIs[id], id, link); err != nil {
		return "", err
	}
	mtu, err := p.bootMTU(ctx, s)
	if err != nil {
		return "", err
	}
	if link.MTU == mtu || mtu != 0 && !p.alone(link) {
		mtu = 0
	}
	if !link.Up || mtu != 0 {
		if err := p.ignoreRouters(s.ENIs[id], link.Name); err != nil {
			return "", err
		}
		if err := (nl.Wiring{{NS: p.Host, Object: nl.Up{Dev: link.Name, MTU: mtu}}}).Add(); err != nil {
			return "", err
		}
	}
	return link.Name, p.record(ctx, id, link)
}

// alone reports whether the link of an ENI has no slaves. The kernel gives a new MTU to all slaves, even if their pods
// should have another MTU. But their IPv6 keeps the old MTU (see [nl.MTU6]). A kernel without macvlan does not report
// slaves. Then a link that is down counts as a new link without slaves.
func (p *Pool) alone(link nl.Link) bool {
	err := p.Host.Unshared(link)
	return err == nil || !link.Up && !errors.Is(err, nl.ErrShared)
}

// ignoreRouters sets accept_ra of an ENI's link to 0. Then the node takes no routes and addresses from router
// advertisements on this link. If the node does not forward IPv6, the kernel takes them by default. The boot ENI's link
// is the node's own, so ignoreRouters does not change it.
func (p *Pool) ignoreRouters(e registry.ENI, link string) error {
	if e.IsBoot() {
		return nil
	}
	return nl.Wiring{{NS: p.Host, Object: nl.Sysctl{Key: "net/ipv6/conf/" + link + "/accept_ra", Value: "0",
		Optional: true}}}.Add()
}

// link finds the link of an ENI. It first tries the last known name of the link. If no link has this name and the ENI's
// MAC address, it searches all links of the node for the MAC address. If the link is not on the node, the error matches
// fs.ErrNotExist.
func (p *Pool) link(ctx context.Context, s *registry.State, id string) (nl.Link, error) {
	eni := s.ENIs[id]
	if eni.Link != "" && eni.Missed.IsZero() {
		if l, err := p.Host.LinkByName(eni.Link); err == nil && l.Owns(eni.MAC) {
			return l, nil
		}
	}
	l, err := p.Host.FindMAC(eni.MAC)
	if err != nil {
		return l, err
	}
	return l, p.noteLink(ctx, eni, id, l.Name)
}

// bootMTU returns the MTU of the boot ENI's link, or 0 if the MTU of the other links must not be changed.
func (p *Pool) bootMTU(ctx context.Context, s *registry.State) (int, error) {
	for id, e := range s.ENIs {
		if !e.IsBoot() {
			continue
		}
		l, err := p.link(ctx, s, id)
		if errors.Is(err, fs.ErrNotExist) {
			slog.Warn("the link of the boot ENI is not on the node: the MTU of the other ENIs is not changed", "eni",
				id, "mac", e.MAC)
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read the MTU of the boot ENI: %w", err)
		}
		return sensible(l.MTU), nil
	}
	return 0, nil
}

// sensible returns the MTU, or 0 if the MTU is not between minMTU and maxMTU.
func sensible(mtu int) int {
	if mtu < minMTU || mtu > maxMTU {
		return 0
	}
	return mtu
}
