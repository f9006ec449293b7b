// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ipam manages the addresses of a node: it leases them to pods, and gets
// more from EC2 when there are none. Over it stands the ipam plugin, the first of the
// chain; the tool collects and inspects by the same [Pool].
//
// An ADD that finds a free address asks neither EC2 nor the metadata service: it
// writes a lease to the registry and is done ([lease.Add]). When none is free, one process
// of the node asks EC2 for all that wait ([Pool.Acquire]). A DEL ends the lease and asks
// nobody; unassigning is the business of collections ([Pool.Collect]).
//
// The invariants: an address has one owner, from before its ADD answers until after its
// DEL began; an address that a pod has is never unassigned; what EC2 was asked for is
// on disk before it is asked, so that a process may be killed anywhere, and the next
// one finds what it had begun.
package ipam

import (
	"context"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Commands are the commands of the ipam plugin, executed with these arguments. A runtime
// gives none; [lease.Program] has an ADD only get addresses.
func Commands(args ...string) plugin.Commands[lease.Config] {
	c := lease.Commands()
	if c.Add = lease.Acquisition(args, inThisProcess()); c.Add == nil {
		c.Add = add
	}
	return c
}

func add(ctx context.Context, r *plugin.Request[lease.Config]) (*types100.Result, error) {
	result, _, err := lease.Add(ctx, r, inThisProcess())
	return result, err
}

// inThisProcess is EC2 as the environment says where it is.
func inThisProcess() lease.Source {
	return source(func() *aws.Client { return aws.New(aws.Options{}) })
}
