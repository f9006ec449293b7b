// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package lease leases the addresses of the node to its pods. It has the part of the ipam plugin that needs neither EC2
// nor the metadata service. Package lease does not import the AWS SDK. So an ADD that finds a free address does not
// load the SDK, and programs that do not ask EC2 stay small.
//
// An ADD that finds a free address only writes a lease to the registry ([Pool.Take]). If no address is free, the ADD
// waits for its turn to ask EC2 ([Pool.Acquire]). The ADD uses a [Source] to ask EC2. The Source of package ipam asks
// EC2 in the same process, and the Source of [Program] executes another program. A DEL ends the lease, and calls
// neither EC2 nor metadata. Package less unassigns addresses.
//
// There are two invariants. The first invariant: an address has only one owner. The owner has the address before its
// ADD answers, and keeps the address until its DEL has begun. The second invariant: before an ADD answers, it checks
// the node's routes. If a route shows that another pod has the address, the ADD does not use the address.
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

// openPool opens the pool of this node, like Open. But if the node's namespace is already open in ctx, openPool uses
// that namespace.
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

// del does not open the node's namespace, because most DELs do not need it.
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

// status returns an error if no ADD can succeed on this node. For example, [GrowProgram] may not be installed, so the
// node's first ADD would fail. But if no address is free, or a process holds a lock, status returns no error. If status
// returned an error in these cases, the runtime would report the node as not ready, and Kubernetes would evict the
// node's pods.
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

// Superseded reports whether a later ADD of the attachment has made the objects that are now in the pod. The caller's
// ADD has leases, and the argument began is the time when the last of them began. If a lease of the attachment began
// after this time, that lease belongs to a later ADD. If the registry cannot be read, or the time of that lease is in
// the future, Superseded returns true.
func Superseded[C any](r *plugin.Request[C], began time.Time) bool {
	s, err := view()
	if err != nil {
		return true
	}
	younger := func(a netip.Addr) bool { l, _ := s.Leases.At(a); return s.MaybeBegunAfter(l, began) }
	return slices.ContainsFunc(s.Held(key(r)), younger)
}

// Added lists attachments of the request's network. It lists an attachment only if its leases began after the request's
// command began.
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

// prevAddrs returns the addresses in the prevResult r of a request.
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
