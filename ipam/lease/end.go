// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// End ends the leases of an attachment, and its addresses begin to cool. End calls neither EC2 nor metadata. An
// attachment without a lease is no error.
//
// The hints are addresses that the attachment has according to the caller. If such an address has a lease without a
// key, as for a pod of the original plugin, End also ends that lease. End keeps the lease without a key if the kernel
// shows the address in use, or if End cannot ask the kernel. A runtime may repeat an old DEL, and a running pod may
// have the address by now. A collection ends such a lease later.
func (p *Pool) End(ctx context.Context, k registry.Key, hints ...netip.Addr) error {
	found := map[netip.Addr]string{} // hints that have a lease without a key, and where the kernel showed each
	var unused, returns bool         // there is an ENI to detach; there is an address to release
	var whole map[string]registry.ENI
	err := p.Registry.Change(ctx, func(s *registry.State) {
		clear(found)
		s.EndWaiters(k)
		whole = wholeOf(s, k)
		s.EndOf(k, time.Now(), p.Began)
		unused, returns = AnyUnused(s), AnyToRelease(s)
		for _, a := range hints {
			findAgain(s, a)
			if l, ok := s.Leases.At(a); ok && l.Key == (registry.Key{}) {
				found[a] = l.NetNS
			}
		}
	})
	if err == nil {
		p.putBackSettings(ctx, whole)
	}
	if unused && err == nil {
		p.refill()
	}
	if returns && err == nil {
		p.release()
	}
	var left []netip.Addr
	for a, netns := range found {
		if !p.has(netns, a) {
			left = append(left, a)
		}
	}
	if err != nil || len(left) == 0 {
		return err
	}
	return p.Registry.Change(ctx, func(s *registry.State) { s.EndOf(k, time.Now(), p.Began, left...) })
}

// findAgain finds a pod's address that is neither leased nor free in the registry, and gives it a lease without a key.
// The registry lacks such an address if it was rebuilt when not all namespaces could be read. The primary address of
// the boot ENI is the node's own, and gets no lease. A collection ends the new lease.
func findAgain(s *registry.State, a netip.Addr) {
	id, e := s.ENIOf(a)
	if !s.Leases.Has(a) && !s.Free.Has(a) && !e.Foreign && slices.Contains(e.Addrs, a) &&
		!(e.IsBoot() && a == e.Primary()) {
		s.Found(a, registry.Lease{ENI: id, Bound: true, Since: time.Now()})
	}
}

// has reports whether the namespace at the path seen still has the address, or the node has a host route to the
// address. If has cannot read the namespace or the routes, it returns true. If the namespace is not known, has also
// returns true: only a walk through all namespaces of the node could find the address.
func (p *Pool) has(seen string, a netip.Addr) bool {
	switch {
	case filepath.IsAbs(seen):
		gone, err := without([]netip.Addr{a}, seen)
		if err != nil || len(gone) == 0 {
			return true
		}
	case seen != routed:
		return true
	}
	used := true
	err := p.withHost(func(host *nl.NS) (err error) { used, err = host.HasHostRoute(a); return err })
	return used || err != nil
}

// Retain is CNI's GC: it ends the leases of the network's attachments that valid does not list. If the kernel shows the
// address of a lease in use, Retain keeps the lease. If a namespace cannot be read, Retain keeps all leases.
func (p *Pool) Retain(ctx context.Context, network string, valid []plugin.Attachment) error {
	used := p.Used()
	return p.Registry.Update(ctx, func(s *registry.State) error {
		s.EndWhere(time.Now(), func(a netip.Addr, l registry.Lease) bool {
			return l.Network == network && !slices.Contains(valid, l.Attachment) && !used.Shows(s, a, l) &&
				!used.Partial && !s.BegunAfter(l, p.Began)
		})
		return nil
	})
}
