// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package chain runs the three plugins, ipam, ipvlan and unnumbered-ptp, in one process. It also runs the plugin
// egress, which changes nothing for most pods. In a conflist with three plugins, most of the cost of an ADD is the
// start and the end of three programs.
//
// The invariant: a command of the chain changes the node and the registry like the commands of the three plugins
// together. So the chain's DEL can delete the objects that the three plugins' ADDs have made. The three plugins' DELs
// can delete the objects that the chain's ADD has made.
package chain

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// plugins has the commands of the chain's plugins, in the order in which an ADD calls the plugins.
var plugins = []plugin.Commands[Config]{
	adapt(lease.Commands(), func(c Config) lease.Config { return c.ipam }), // its Add is not used: see leaseAddress
	adapt(lease.NotesUse(ipvlan.Commands(lease.LinkName)), func(c Config) ipvlan.Config { return c.ipvlan }),
	adapt(ptp.Commands(), func(c Config) ptp.Config { return c.ptp }),
	adapt(egress.Commands(), func(c Config) egress.Config { return c.egress }),
}

// ipvlanAt is the index of ipvlan in plugins.
const ipvlanAt = 1

// Commands returns the commands of the plugin cni-ipvlan-vpc-k8s.
func Commands() plugin.Commands[Config] {
	return lease.Counts(plugin.Commands[Config]{
		Add: func(ctx context.Context, r *plugin.Request[Config]) (*types100.Result, error) {
			ctx, release := nl.KeepOpen(ctx)
			defer release()
			if err := refuseNode(ctx, r); err != nil {
				return nil, err
			}
			return add(ctx, r)
		},
		Del: sharingNS(del), Check: sharingNS(check), GC: sharingNS(gc), Status: sharingNS(status),
		Refuses: true,
	})
}

// refuseNode returns an error if CNI_NETNS is the namespace of the node. An ADD calls refuseNode before it leases an
// address. refuseNode does not keep the pod's namespace open, because an open namespace would outlive its pod. The pod
// may end while the ADD waits for EC2. If the namespace is missing, a plugin reports this later.
func refuseNode(ctx context.Context, r *plugin.Request[Config]) error {
	node, err := nl.NodeOf(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	if node.IsAt(r.NetNS) {
		return plugin.NodesNS(r.NetNS)
	}
	return nil
}

// sharingNS returns a function that calls f. All plugins that f calls share one open namespace of the node, and one of
// the pod.
func sharingNS(
	f func(context.Context, *plugin.Request[Config]) error,
) func(context.Context, *plugin.Request[Config]) error {
	return func(ctx context.Context, r *plugin.Request[Config]) error {
		ctx, release := nl.KeepOpen(ctx)
		defer release()
		return f(ctx, r)
	}
}

// add calls the plugins one after the other: each plugin gets the result of the plugin before it. If a plugin fails,
// add deletes the objects that the earlier plugins have made. But it deletes nothing in two cases: the attachment
// already had an address when this ADD began, or a later ADD of the attachment has begun, and may have made the
// objects.
//
// If the kernel reports that another link has the leased address, add tries again. After the failed try, the registry
// has a lease of this address that belongs to no pod (see [lease.NotesUse]). So no later try gets the same address.
func add(ctx context.Context, r *plugin.Request[Config]) (result *types100.Result, err error) {
	const tries = 8
	for range tries {
		var inUse bool
		if result, inUse, err = addOnce(ctx, r); !inUse || ctx.Err() != nil {
			break
		}
	}
	return result, err
}

// addOnce is one try of add. inUse reports whether another link has the address of this try.
func addOnce(ctx context.Context, r *plugin.Request[Config]) (_ *types100.Result, inUse bool, _ error) {
	result, leaseBegan, err := leaseAddress(ctx, r)
	made, step := 1, *r
	for err == nil && made < len(plugins) {
		step.Prev = result
		if result, err = plugins[made].Add(ctx, &step); err == nil { // a plugin that fails deletes its own objects
			made++
		}
	}
	inUse = made == 1 && errors.Is(err, syscall.EADDRINUSE)
	if err != nil && !leaseBegan.IsZero() && !lease.Superseded(r, leaseBegan) {
		own := *r
		own.Began = leaseBegan // a lease that began later than this ADD's lease belongs to another command, and stays
		err = errors.Join(err, deleteObjects(context.WithoutCancel(ctx), &own, made))
	}
	return result, inUse, err
}

// leaseAddress is the ADD of ipam. If no address is free, leaseAddress executes [lease.GrowProgram]. leaseBegan is the
// time when the attachment's last lease began. leaseBegan is zero if the attachment already had an address when this
// ADD began.
func leaseAddress(
	ctx context.Context, r *plugin.Request[Config],
) (result *types100.Result, leaseBegan time.Time, err error) {
	own := requestOf(r, r.Config.ipam)
	defer func() { r.Waited = r.Waited || own.Waited }()
	return lease.Add(ctx, own, lease.Program(ctx, r))
}

func del(ctx context.Context, r *plugin.Request[Config]) error {
	return deleteObjects(ctx, r, len(plugins))
}

// deleteObjects deletes the objects that the first n plugins have made, in reverse order. It stops at the first
// failure. The first plugin's DEL comes last, and frees the address. When the address becomes free, the pod must not
// have it any more.
func deleteObjects(ctx context.Context, r *plugin.Request[Config], n int) error {
	for _, c := range slices.Backward(plugins[:n]) {
		if err := c.Del(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func check(ctx context.Context, r *plugin.Request[Config]) error {
	if err := refuseNode(ctx, r); err != nil {
		return err
	}
	for _, c := range plugins {
		if err := c.Check(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// gc keeps the objects of the valid attachments, and the objects of an ADD that runs at the same time. A runtime may
// call GC during an ADD, although the CNI specification forbids this (section 4).
func gc(ctx context.Context, r *plugin.Request[Config]) error {
	var failed error
	r.Added = func() ([]plugin.Attachment, error) { return lease.Added(r) }
	for _, c := range plugins {
		failed = errors.Join(failed, c.GC(ctx, r))
	}
	return failed
}

func status(ctx context.Context, r *plugin.Request[Config]) error {
	_, slaves := r.Config.ipam.Routed()
	for i, c := range plugins {
		if i == ipvlanAt && len(slaves) == 0 {
			continue // no pod gets a slave, so the node does not need ipvlan
		}
		if err := c.Status(ctx, r); err != nil {
			return err
		}
	}
	return nil
}
