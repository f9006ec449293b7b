// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package lease gives the addresses that a node has to its pods: all of the ipam
// plugin that needs neither EC2 nor the metadata service. It cannot ask them: that it
// does not import the SDK is what keeps the warm path free of it, and the programs
// small that need no more.
//
// An ADD that finds a free address writes a lease to the registry and is done
// ([Pool.Take]); for one that does not, package ipam asks EC2. A DEL ends the lease and
// asks nobody; unassigning is the business of collections.
//
// The invariants: an address has one owner, from before its ADD answers until after its
// DEL began; and who takes one has looked whether the node routes it to a pod already.
package lease

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Commands are those of the ipam plugin that never ask EC2: all but ADD, see [Add].
func Commands() plugin.Commands[Config] {
	return plugin.Commands[Config]{Del: del, Check: check, GC: gc, Status: status}
}

// Open opens the pool of this node.
func Open(policy Policy) (*Pool, error) {
	r, err := openRegistry()
	if err != nil {
		return nil, err
	}
	host, err := nl.Host()
	if err != nil {
		return nil, err
	}
	return &Pool{Registry: r, Host: host, Policy: policy}, nil
}

func openRegistry() (*registry.Registry, error) {
	r, err := registry.Open(registry.Dir())
	if err != nil {
		return nil, plugin.Errorf(plugin.CodeIO, "", "%w", err)
	}
	return r, nil
}

// Close releases what Open has opened.
func (p *Pool) Close() error { return p.Host.Close() }

// Add answers an ADD as far as it goes without EC2; then it fails with an error that
// [IsNone] knows. The owner then waits, as the registry knows, for the plugin that may
// ask. Fresh tells whether the attachment had no address before.
func Add(ctx context.Context, r *plugin.Request[Config]) (res *types100.Result, fresh bool, err error) {
	policy, err := r.Config.Choose(r.Pod)
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, policy.Timeout)
	defer cancel()
	p, err := Open(policy)
	if err != nil {
		return nil, false, err
	}
	defer p.Close()
	a, err := p.Take(ctx, OwnerOf(r))
	if err == nil && policy.Peers && !PeersKnown(a.VPC) {
		err = errPeers
	}
	if err != nil {
		return nil, a.Fresh || isShort(err), err
	}
	res, err = p.Answer(ctx, a)
	return res, a.Fresh, err
}

// OwnerOf is who makes a request.
func OwnerOf(r *plugin.Request[Config]) Owner { return Owner{key(r), r.Pod, r.NetNS} }

// Answer is the result of an ADD, with the link of the ENI set up.
func (p *Pool) Answer(ctx context.Context, a Allocation) (*types100.Result, error) {
	link, err := p.up(ctx, a.seen, a.ID)
	if err != nil {
		return nil, plugin.Errorf(plugin.CodeTryAgain, "a new ENI takes some seconds to appear; if it never does, see dmesg and 'ip link'",
			"%s (%s) of %v: %w", a.ID, a.ENI.MAC, a.Addrs, err)
	}
	return a.Result(link, p.Policy), nil
}

// del needs nothing of the host.
func del(ctx context.Context, r *plugin.Request[Config]) error {
	reg, err := openRegistry()
	if err != nil {
		return err
	}
	return (&Pool{Registry: reg}).Release(ctx, key(r), hints(r.Prev)...)
}

// check asks whether the reservation is still there. Whether the pod has the address
// is for the plugins behind us to say.
func check(_ context.Context, r *plugin.Request[Config]) error {
	reg, err := openRegistry()
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
	p, err := Open(Policy{})
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
		if a, ok := plugin.Addr(ip.Address.IP); ok {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
