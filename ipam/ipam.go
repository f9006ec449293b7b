// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ipam manages the addresses of a node. It leases addresses to pods, and gets more addresses from EC2 when no
// address is free. The plugins do not import package ipam, but execute [lease.GrowProgram], which imports it. The
// operator's tool uses the same [Pool] to run collections, and to inspect the node.
//
// An ADD that finds a free address calls neither EC2 nor metadata: it writes a lease to the registry and is done
// ([lease.Add]). If no address is free, one process of the node asks EC2 for the addresses that all waiting ADDs need
// ([Pool.Acquire]). A DEL ends the lease, and calls neither EC2 nor metadata. A collection unassigns free addresses
// ([Pool.Collect]). If a pod had chosen an address, [Pool.ReleaseChosen] unassigns it soon after the DEL.
//
// There are three invariants:
//
//   - A leased address has exactly one owner. The owner has the address before its ADD answers, and keeps it
//     until its DEL has begun.
//   - The node never unassigns an address that a pod has.
//   - Before a process changes something in EC2, the registry on disk has a record of the change. So a process may be
//     killed at any time, and the next process finishes the work of the killed one.
package ipam

import (
	"context"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Commands returns the commands of [lease.GrowProgram], whose command-line arguments are args. If the args come from
// [lease.Program], an ADD only leases the addresses of one interface, and the parent process does the rest. Otherwise,
// an ADD does all that the ipam plugin does.
func Commands(args ...string) plugin.Commands[lease.Config] {
	var grown *Pool // nil: the ADD has not asked EC2
	here := inProcessSource(func(p *lease.Pool) *Pool {
		grown = New(*p, aws.New(aws.Options{})) // the environment says where EC2 is
		return grown
	})
	c := lease.Commands()
	c.Add = lease.Acquisition(args, here)
	if c.Add != nil {
		c.Ended = nil // the metrics count the parent's ADD, and not this one
	} else {
		c.Add = func(ctx context.Context, r *plugin.Request[lease.Config]) (*types100.Result, error) {
			result, _, err := lease.Add(ctx, r, here)
			return result, err
		}
	}
	c.After = func() {
		if grown != nil {
			grown.Finish(context.Background())
		}
	}
	return c
}
