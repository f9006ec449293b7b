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

// If the MTU of the boot ENI's link is from minMTU to maxMTU, the links of other ENIs get this MTU. Inside a VPC,
// 9001 is possible (EC2 user guide, "Network MTU").
const minMTU, maxMTU = 1000, 9001

// LinkUp brings up the link of an ENI, and returns the link's name. A link without slaves also gets the MTU of the boot
// ENI's link. LinkUp waits for the link of a new ENI. If the link does not appear, the error is [ErrNoLink]. LinkUp
// restores settings that an earlier pod has changed. If LinkUp cannot restore them, the error is [ErrKept].
func (p *Pool) LinkUp(ctx context.Context, id string) (string, error) {
	s, err := p.Registry.View()
	if err != nil {
		return "", err
	}
	return p.linkUp(ctx, s, id)
}

// linkUp does what LinkUp does, with the state s that the caller has read.
func (p *Pool) linkUp(ctx context.Context, s *registry.State, id string) (string, error) {
	link, err := p.findLink(ctx, s, id)
	if errors.Is(err, fs.ErrNotExist) {
		link, err = p.awaitLink(ctx, s.ENIs[id], id)
	}
	if err != nil {
		return "", err
	}
	if err := p.restoreSettings(ctx, s.ENIs[id], id, link); err != nil {
		return "", err
	}
	mtu, err := p.bootMTU(ctx, s)
	if err != nil {
		return "", err
	}
	if link.MTU == mtu || mtu != 0 && !p.hasNoSlaves(link) {
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
	return link.Name, p.recordSettings(ctx, id, link)
}

// hasNoSlaves reports whether the link of an ENI has no slaves. The kernel gives a new MTU to all slaves, even if their
// pods should have another MTU. But IPv6 on the slaves keeps the old MTU: see [nl.MTU6]. A kernel without macvlan does
// not report slaves. On such a kernel, a link that is down counts as a link without slaves.
func (p *Pool) hasNoSlaves(link nl.Link) bool {
	err := p.Host.Unshared(link)
	return err == nil || !link.Up && !errors.Is(err, nl.ErrShared)
}

// ignoreRouters sets accept_ra of an ENI's link to 0. Without this, a node that does not forward IPv6 takes routes and
// addresses from router advertisements on this link. The boot ENI's link is the node's own, and stays as it is.
func (p *Pool) ignoreRouters(e registry.ENI, link string) error {
	if e.IsBoot() {
		return nil
	}
	return nl.Wiring{{NS: p.Host, Object: nl.Sysctl{Key: "net/ipv6/conf/" + link + "/accept_ra", Value: "0",
		Optional: true}}}.Add()
}

// findLink finds the link of an ENI. It looks for a link with the name that the registry has. If this link does not
// belong to the ENI, findLink looks for a link with the ENI's MAC address. If the link is not on the node, the error
// matches fs.ErrNotExist.
func (p *Pool) findLink(ctx context.Context, s *registry.State, id string) (nl.Link, error) {
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

// bootMTU returns the MTU of the boot ENI's link, or 0 if the other links must keep their MTUs.
func (p *Pool) bootMTU(ctx context.Context, s *registry.State) (int, error) {
	for id, e := range s.ENIs {
		if !e.IsBoot() {
			continue
		}
		l, err := p.findLink(ctx, s, id)
		if errors.Is(err, fs.ErrNotExist) {
			slog.Warn("the link of the boot ENI is not on the node: the MTU of the other ENIs is not changed", "eni",
				id, "mac", e.MAC)
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read the MTU of the boot ENI: %w", err)
		}
		return validMTU(l.MTU), nil
	}
	return 0, nil
}

// validMTU returns mtu, or 0 if mtu is not between minMTU and maxMTU.
func validMTU(mtu int) int {
	if mtu < minMTU || mtu > maxMTU {
		return 0
	}
	return mtu
}
