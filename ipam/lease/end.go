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

// End ends the leases of an attachment. The addresses of these leases then begin to cool. End calls neither EC2 nor
// metadata. If the attachment has no lease, End returns no error.
//
// The argument hints has the addresses that the attachment has had according to the caller. If such an address has a
// lease without a key, End ends this lease, too. The addresses of the original plugin's pods have such leases. But a
// runtime may repeat an old DEL, and a running pod may have the address by now. So if the kernel shows the address in
// use, or cannot be asked, the lease stays until a collection ends it.
func (p *Pool) End(ctx context.Context, k registry.Key, hints ...netip.Addr) error {
	found := map[netip.Addr]string{} // the addresses in hints whose leases have no key; value: NetNS of the lease
	var unused, returns bool         // unused: there is an ENI to detach; returns: there is an address to release
	var whole map[string]registry.ENI
	err := p.Registry.Change(ctx, func(s *registry.State) {
		clear(found)
		s.EndWaiters(k)
		whole = wholeENIs(s, k)
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
		p.markRefill()
	}
	if returns && err == nil {
		p.markRelease()
	}
	var left []netip.Addr
	for a, netns := range found {
		if !p.stillUsed(netns, a) {
			left = append(left, a)
		}
	}
	if err != nil || len(left) == 0 {
		return err
	}
	return p.Registry.Change(ctx, func(s *registry.State) { s.EndOf(k, time.Now(), p.Began, left...) })
}

// findAgain adds a lease without a key for an address that is on an ENI of the node, but neither leased nor free. A pod
// may have such an address if a namespace could not be read when the registry was rebuilt. The primary address of the
// boot ENI is the node's own, and gets no lease.
func findAgain(s *registry.State, a netip.Addr) {
	id, e := s.ENIOf(a)
	if !s.Leases.Has(a) && !s.Free.Has(a) && !e.Foreign && slices.Contains(e.Addrs, a) &&
		!(e.IsBoot() && a == e.Primary()) {
		s.Found(a, registry.Lease{ENI: id, Bound: true, Since: time.Now()})
	}
}

// stillUsed reports whether an address is still in use: the namespace at place has it, or the node has a host route to
// it. The place is where the kernel showed the address: a path, [routePlace], [TheNode], or "" if the place is not
// known. For [TheNode] and "", stillUsed returns true. It also returns true if it cannot read the namespace or the
// routes.
func (p *Pool) stillUsed(place string, a netip.Addr) bool {
	switch {
	case filepath.IsAbs(place):
		gone, err := missingAddrs([]netip.Addr{a}, place)
		if err != nil || len(gone) == 0 {
			return true
		}
	case place != routePlace:
		return true
	}
	used := true
	err := p.withHost(func(host *nl.NS) (err error) { used, err = host.HasHostRoute(a); return err })
	return used || err != nil
}

// Retain is CNI's GC. It ends the leases of the network's attachments, except the attachments in the argument valid. A
// lease stays if the kernel shows its address in use. If a namespace cannot be read, all leases stay.
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
