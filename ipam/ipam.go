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
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Commands are the commands of the ipam plugin.
func Commands() plugin.Commands[Config] {
	return plugin.Commands[Config]{Add: add, Del: del, Check: check, GC: gc, Status: status}
}

// OpenPool opens the pool of this node.
func OpenPool(policy Policy) (*Pool, error) {
	r, err := registry.Open(registry.Dir())
	if err != nil {
		return nil, plugin.Errorf(plugin.CodeIO, "", "%w", err)
	}
	host, err := nl.Host()
	if err != nil {
		return nil, err
	}
	return &Pool{Cloud: aws.New(aws.Options{}), Registry: r, Host: host, Policy: policy}, nil
}

// Close releases what OpenPool has opened.
func (p *Pool) Close() error { return p.Host.Close() }

func add(ctx context.Context, r *plugin.Request[Config]) (*types100.Result, error) {
	policy, err := r.Config.choose(r.Pod)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, policy.Timeout)
	defer cancel()
	p, err := OpenPool(policy)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	a, err := p.Acquire(ctx, Owner{key(r), r.Pod, r.NetNS})
	if err != nil {
		return nil, fmt.Errorf("acquire an address: %w", err)
	}
	if policy.Peers {
		if a.VPC.Peers, err = p.peers(ctx, a.ENI.VPC, a.VPC); err != nil {
			return nil, explain(fmt.Errorf("unable to enumerate peer CIDRs: %w", err))
		}
	}
	link, err := p.up(ctx, a.seen, a.ID)
	if err != nil {
		return nil, plugin.Errorf(plugin.CodeTryAgain, "a new ENI takes some seconds to appear; if it never does, see dmesg and 'ip link'",
			"%s (%s) of %v: %w", a.ID, a.ENI.MAC, a.Addrs, err)
	}
	return result(a, link, policy), nil
}

func del(ctx context.Context, r *plugin.Request[Config]) error {
	p, err := OpenPool(Policy{})
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Release(ctx, key(r), hints(r.Prev)...)
}

// check asks whether the reservation is still there. Whether the pod has the address
// is for the plugins behind us to say.
func check(_ context.Context, r *plugin.Request[Config]) error {
	reg, err := registry.Open(registry.Dir())
	if err != nil {
		return err
	}
	s, err := reg.View()
	if err != nil {
		return err
	}
	held := s.Held(key(r))
	if len(held) == 0 {
		return fmt.Errorf("%s has no lease", key(r))
	}
	for _, a := range held {
		if r.Prev != nil && !slices.Contains(hints(r.Prev), a) {
			return fmt.Errorf("%s has a lease for %s, but prevResult says %v", key(r), a, hints(r.Prev))
		}
		if id, _ := s.ENIOf(a); id == "" {
			return fmt.Errorf("%s has a lease for %s, which is on no ENI of this node", key(r), a)
		}
	}
	return nil
}

func gc(ctx context.Context, r *plugin.Request[Config]) error {
	p, err := OpenPool(Policy{})
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Retain(ctx, r.Network, r.Valid)
}

// status says whether an ADD could succeed at all. That no address is free is no
// reason to fail: a runtime then reports the node as not ready, and Kubernetes evicts
// the pods that it has.
func status(ctx context.Context, _ *plugin.Request[Config]) error {
	r, err := registry.Open(registry.Dir())
	if err == nil {
		err = r.Update(ctx, func(*registry.State) error { return nil })
	}
	if err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, "", "%w", err)
	}
	return nil
}

func key(r *plugin.Request[Config]) registry.Key {
	return registry.Key{Network: r.Network, Attachment: r.Attachment}
}

// hints are the addresses of a previous result.
func hints(r *types100.Result) []netip.Addr {
	if r == nil {
		return nil
	}
	var addrs []netip.Addr
	for _, ip := range r.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}
