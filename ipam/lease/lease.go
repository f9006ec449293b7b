// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package lease leases the addresses of the node to its pods. It has the part of the ipam plugin that needs neither EC2
// nor the metadata service. It does not import the AWS SDK. So an ADD that finds a free address does not load the SDK.
//
// An ADD that finds a free address only writes a lease to the registry ([Pool.Take]). If no address is free, the ADD
// waits for its turn, and then asks EC2 by a [Source] ([Pool.Acquire]). The Source of package ipam asks in the same
// process, and the Source of [Program] executes another program. A DEL ends the lease, and calls neither EC2 nor
// metadata. Package less unassigns addresses.
//
// There are two invariants:
//
//   - An address has only one owner. The owner has the address before its ADD answers, and keeps it until its
//     DEL has begun.
//   - Before an ADD answers, it checks the node's routes. If a route shows that another pod has the address, the ADD
//     does not use the address.
package lease

//go:generate go run ../../internal/codec/gen

import (
	"context"
	"net/netip"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Commands returns the commands of the ipam plugin.
func Commands() plugin.Commands[Config] {
	add := func(ctx context.Context, r *plugin.Request[Config]) (*types100.Result, error) {
		result, _, err := Add(ctx, r, Program(ctx, r))
		return result, err
	}
	return Counts(plugin.Commands[Config]{Add: add, Del: del, Check: check, GC: gc, Status: status})
}

// Open opens the pool of this node.
func Open(policy Policy) (*Pool, error) { return openPool(context.Background(), policy) }

// openPool does what Open does, but uses the node's namespace in ctx if it is already open.
func openPool(ctx context.Context, policy Policy) (*Pool, error) {
	r, err := openRegistry()
	if err != nil {
		return nil, err
	}
	host, err := nl.NodeOf(ctx)
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

// ownerOf returns the owner of a request, for the interface with the number nic.
func ownerOf(r *plugin.Request[Config], nic int) Owner { return Owner{key(r), r.Pod, r.NetNS, nic} }

// del does not open the node's namespace: most DELs do not need it.
func del(ctx context.Context, r *plugin.Request[Config]) error {
	reg, err := openRegistry()
	if err != nil {
		return err
	}
	return (&Pool{Registry: reg, Began: r.Began}).End(ctx, key(r), prevAddrs(r.Prev)...)
}

func gc(ctx context.Context, r *plugin.Request[Config]) error {
	p, err := openPool(ctx, Policy{})
	if err != nil {
		return err
	}
	defer p.Close()
	p.Began = r.Began
	return p.Retain(ctx, r.Network, r.Valid)
}

// status returns an error if no ADD can succeed on this node, for example because [GrowProgram] is not installed. If
// the node only lacks a free address, or a process holds a lock, status returns nil. After an error, the runtime would
// report the node as not ready, and Kubernetes would evict the node's pods.
func status(_ context.Context, r *plugin.Request[Config]) error {
	if err := r.CanDelegate(GrowProgram); err != nil {
		return err
	}
	reg, err := registry.Open(registry.Dir())
	if err == nil {
		err = reg.Usable()
	}
	if err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, "", "%w", err)
	}
	return nil
}

func key[C any](r *plugin.Request[C]) registry.Key {
	return registry.Key{Network: r.Network, Attachment: r.Attachment}
}

// Superseded reports whether a later ADD of the attachment has made the objects that are now in the pod. The argument
// began is the time when the last lease of the caller's ADD began. So a younger lease belongs to a later ADD. If the
// registry cannot be read, or a lease began in the future, Superseded returns true.
func Superseded[C any](r *plugin.Request[C], began time.Time) bool {
	s, err := view()
	if err != nil {
		return true
	}
	younger := func(a netip.Addr) bool { l, _ := s.Leases.At(a); return s.MaybeBegunAfter(l, began) }
	return slices.ContainsFunc(s.Held(key(r)), younger)
}

// Added lists the attachments that have got leases since the request's command began. It lists only attachments of the
// request's network.
func Added[C any](r *plugin.Request[C]) (all []plugin.Attachment, err error) {
	s, err := view()
	if err != nil {
		return nil, err
	}
	for _, l := range s.Leases.All() {
		if l.Network == r.Network && s.BegunAfter(l, r.Began) {
			all = append(all, l.Attachment)
		}
	}
	return all, nil
}

func view() (*registry.State, error) {
	r, err := openRegistry()
	if err != nil {
		return nil, err
	}
	return r.View()
}

func prevAddrs(r *types100.Result) []netip.Addr {
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
