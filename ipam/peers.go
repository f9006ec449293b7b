// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// peers are the CIDR blocks of the peers of a VPC. One process of the node asks, once
// an hour; when EC2 cannot be asked, an old answer is better than none.
func (p *Pool) peers(ctx context.Context, vpc string, known registry.VPC) ([]netip.Prefix, error) {
	if lease.PeersKnown(known) {
		return known.Peers, nil
	}
	unlock, err := p.Registry.Lock(ctx, "peers")
	if err != nil {
		return nil, err
	}
	defer unlock()
	s, err := p.Registry.View()
	if err != nil {
		return nil, err
	}
	old := s.VPCs[vpc]
	if lease.PeersKnown(old) {
		return old.Peers, nil // somebody has asked while we waited
	}
	peers, err := p.Cloud.PeerCIDRs(ctx, vpc)
	if err != nil && !old.PeersRead.IsZero() {
		slog.Warn("peers as they were", "vpc", vpc, "read", old.PeersRead, "error", err)
		return old.Peers, nil
	}
	if err != nil {
		return nil, err
	}
	return peers, p.Registry.Change(ctx, func(s *registry.State) {
		v := s.VPCs[vpc]
		v.Peers, v.PeersRead = peers, time.Now()
		s.VPCs[vpc] = v
	})
}
