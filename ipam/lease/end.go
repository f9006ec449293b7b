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

// End ends the leases of an attachment. The attachment's addresses then begin to cool. End calls neither EC2 nor
// metadata. If the attachment has no lease, End returns no error.
//
// The argument hints has addresses that the attachment has had, as the caller says. If an address in hints has a lease
// without a key, End also ends this lease. The addresses of the original plugin's pods have such leases. But a runtime
// may repeat an old DEL, and a running pod may have the address by now. So End asks the kernel whether the address is
// still in use. If it is, or if End cannot ask the kernel, the lease without a key stays until a collection ends it.
func (p *Pool) End(ctx context.Context, k registry.Key, hints ...netip.Addr) error {
	found := map[netip.Addr]string{} // addresses in hints that have leases without keys; value: the place for stillUsed
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

// findAgain adds a lease without a key for an address, if the address is on an ENI of the node, but is neither leased
// nor free. A pod may have such an address if the registry was rebuilt while a namespace could not be read. The primary
// address of the boot ENI is the node's own, and gets no lease. A DEL or a collection ends the new lease.
func findAgain(s *registry.State, a netip.Addr) {
	id, e := s.ENIOf(a)
	if !s.Leases.Has(a) && !s.Free.Has(a) && !e.Foreign && slices.Contains(e.Addrs, a) &&
		!(e.IsBoot() && a == e.Primary()) {
		s.Found(a, registry.Lease{ENI: id, Bound: true, Since: time.Now()})
	}
}

// stillUsed reports whether an address is still in use. The argument place says where the kernel showed the address: it
// is the path of a namespace, or [routePlace]. The address is in use if that namespace has it, or if the node has a
// host route to it. If stillUsed cannot read the namespace or the routes, it returns true. The argument place may also
// be [TheNode], or "" if the place is not known. For these two values, stillUsed returns true, because only a walk
// through all namespaces could find the address.
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

// Retain is CNI's GC. The argument valid lists the attachments of the network that still exist. Retain ends the leases
// of all other attachments of the network. But if the kernel shows that a lease's address is still in use, Retain keeps
// the lease. If a namespace cannot be read, Retain keeps all leases.
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
