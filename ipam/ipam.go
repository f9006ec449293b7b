// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ipam manages the addresses of a node: it leases them to pods, and gets
// more from EC2 when there are none. Over it stands the ipam plugin, the first of the
// chain; the tool collects and inspects by the same [Pool].
//
// An ADD that finds a free address asks neither EC2 nor the metadata service: it
// writes a lease to the registry and is done. When none is free, one process of the
// node asks EC2 for all that wait ([Pool.Acquire]). A DEL ends the lease and asks
// nobody; unassigning is the business of collections ([Pool.Collect]).
//
// The invariants: an address has one owner, from before its ADD answers until after its
// DEL began; an address that a pod has is never unassigned; what EC2 was asked for is
// on disk before it is asked, so that a process may be killed anywhere, and the next
// one finds what it had begun.
package ipam

import (
	"context"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Commands are the commands of the ipam plugin.
func Commands() plugin.Commands[lease.Config] {
	c := lease.Commands()
	c.Add = add
	return c
}

func add(ctx context.Context, r *plugin.Request[lease.Config]) (*types100.Result, error) {
	policy, err := r.Config.Choose(r.Pod)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, policy.Timeout)
	defer cancel()
	p, err := Open(policy)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	a, err := p.Acquire(ctx, lease.OwnerOf(r))
	if err != nil {
		return nil, fmt.Errorf("acquire an address: %w", err)
	}
	if policy.Peers {
		if a.VPC.Peers, err = p.peers(ctx, a.ENI.VPC, a.VPC); err != nil {
			return nil, explain(fmt.Errorf("unable to enumerate peer CIDRs: %w", err))
		}
	}
	return p.Answer(ctx, a)
}
