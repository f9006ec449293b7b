// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package chain is the three plugins, ipam, ipvlan and unnumbered-ptp, in one process.
//
// Most of what an ADD costs is not what it does, but that three programs start and end
// for it, one of them with the SDK of AWS. In a conflist the type cni-ipvlan-vpc-k8s
// stands for all three: one program, without the SDK. Where an ADD finds no free address
// it executes the ipam plugin, which asks EC2, as CNI has it of a plugin that delegates
// (CNI specification, section 4).
//
// The invariant: what a command does to the node, and what the registry has of it, is
// what the three would do and have, so that a pod made by one kind is deleted by the
// other.
package chain

import (
	"context"
	"errors"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// ipamProgram is executed by an ADD for which EC2 has to be asked.
const ipamProgram = "cni-ipvlan-vpc-k8s-ipam"

// all are the three, in their order.
var all = []plugin.Commands[Config]{
	as(lease.Commands(), func(c Config) lease.Config { return c.ipam }), // but for ADD, see address
	as(ipvlan.Commands(), func(c Config) ipvlan.Config { return c.ipvlan }),
	as(ptp.Commands(), func(c Config) ptp.Config { return c.ptp }),
}

// Commands are the commands of the plugin.
func Commands() plugin.Commands[Config] {
	return plugin.Commands[Config]{Add: add, Del: del, Check: check, GC: gc, Status: status}
}

// add calls each with the result of the one before. If one fails, what the others have
// made is taken back, unless it is the ADD of an attachment that had an address before:
// then it may be there since then.
func add(ctx context.Context, r *plugin.Request[Config]) (*types100.Result, error) {
	result, fresh, err := address(ctx, r)
	made, step := 1, *r
	for err == nil && made < len(all) {
		step.Prev = result
		if result, err = all[made].Add(ctx, &step); err == nil { // else it has taken back its own
			made++
		}
	}
	if err != nil && fresh {
		err = errors.Join(err, takeBack(context.WithoutCancel(ctx), r, made))
	}
	return result, err
}

// address is ipam's ADD. Fresh tells whether the attachment had no address before.
func address(ctx context.Context, r *plugin.Request[Config]) (result *types100.Result, fresh bool, err error) {
	result, fresh, err = lease.Add(ctx, part(r, r.Config.ipam))
	if lease.IsNone(err) {
		result, err = r.Delegate(ctx, ipamProgram)
	}
	return result, fresh, err
}

func del(ctx context.Context, r *plugin.Request[Config]) error { return takeBack(ctx, r, len(all)) }

// takeBack deletes what the first n have made, in the reverse order. It ends at the first
// that fails: an address must not be free while the pod has it.
func takeBack(ctx context.Context, r *plugin.Request[Config], n int) error {
	for _, c := range slices.Backward(all[:n]) {
		if err := c.Del(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func check(ctx context.Context, r *plugin.Request[Config]) error {
	for _, c := range all {
		if err := c.Check(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func gc(ctx context.Context, r *plugin.Request[Config]) error {
	var failed error
	for _, c := range all {
		failed = errors.Join(failed, c.GC(ctx, r))
	}
	return failed
}

// status wants ipam's program, too: without it the node's first ADD would fail.
func status(ctx context.Context, r *plugin.Request[Config]) error {
	if err := r.CanDelegate(ipamProgram); err != nil {
		return err
	}
	for _, c := range all {
		if err := c.Status(ctx, r); err != nil {
			return err
		}
	}
	return nil
}
