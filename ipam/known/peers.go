// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// peersLife is the age from which a collection or a growth renews the list of a VPC's peers. For an ADD, an older list
// is good enough.
const peersLife = time.Hour

// NeedPeers asks EC2 for the peers of each VPC for which the registry has no list of peers.
func (p *Node) NeedPeers(ctx context.Context) error {
	err := p.readPeers(ctx, func(v registry.VPC) bool { return v.PeersRead.IsZero() })
	if err != nil {
		return call.Explain(fmt.Errorf("unable to enumerate peer CIDRs: %w", err))
	}
	return nil
}

// RenewPeers asks EC2 for a VPC's peers if the registry's list of these peers is missing or old: see isStale. If EC2
// does not answer within two seconds, new pods get routes to the peers in the old list.
func (p *Node) RenewPeers(ctx context.Context) {
	if p.PeersAsked {
		return
	}
	const moment = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, moment)
	defer cancel()
	if err := p.readPeers(ctx, p.isStale); err != nil {
		slog.Warn("EC2 did not list the peers of the VPC: new pods get routes to the peers in the registry's "+
			"earlier list, if any", "error", err)
	}
}

// isStale reports whether RenewPeers must ask for the peers of a VPC. Without a configuration, an earlier list in the
// registry shows that pods need routes to the peers.
func (p *Node) isStale(v registry.VPC) bool {
	wanted := p.Policy.Peers || p.Policy.Provision == "" && !v.PeersRead.IsZero()
	return wanted && time.Since(v.PeersRead) >= peersLife
}

// readPeers asks EC2 for the peers of each VPC for which needed returns true, and records these peers.
func (p *Node) readPeers(ctx context.Context, needed func(registry.VPC) bool) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	var failed error
	for _, vpc := range slices.Sorted(maps.Keys(s.VPCs)) {
		if !needed(s.VPCs[vpc]) {
			continue
		}
		peers, err := call.Look(ctx, &p.Node, "DescribeVpcPeeringConnections",
			func(ctx context.Context) ([]netip.Prefix, error) { return p.Cloud.PeerCIDRs(ctx, vpc) })
		if err == nil {
			err = p.notePeers(ctx, vpc, peers)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// notePeers records the peers of a VPC, which EC2 has just reported.
func (p *Node) notePeers(ctx context.Context, vpc string, peers []netip.Prefix) error {
	return p.Registry.Change(ctx, func(s *registry.State) {
		v := s.VPCs[vpc]
		v.Peers, v.PeersRead = peers, time.Now()
		s.VPCs[vpc] = v
	})
}
