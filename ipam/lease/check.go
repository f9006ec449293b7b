// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// check is CNI's CHECK. It returns an error if the registry no longer has the lease of the ADD. The plugins after this
// one check the pod.
func check(ctx context.Context, r *plugin.Request[Config]) error {
	s, err := view()
	if registry.IsGarbage(err) { // the registry counts as lost: the next change sets the file aside
		s, err = &registry.State{}, nil
	}
	if err != nil {
		return err
	}
	held := s.Held(key(r))
	if len(held) == 0 {
		return checkFound(ctx, s, r)
	}
	for _, a := range held {
		if r.Prev != nil && !slices.Contains(prevAddrs(r.Prev), a) {
			return fmt.Errorf("%s has a lease for %s, but prevResult says %v", key(r), a, prevAddrs(r.Prev))
		}
		if err := onENI(s, r, a); err != nil {
			return err
		}
	}
	return nil
}

func onENI(s *registry.State, r *plugin.Request[Config], a netip.Addr) error {
	if id, _ := s.ENIOf(a); id == "" {
		return fmt.Errorf("%s has a lease for %s, which is on no ENI of this node", key(r), a)
	}
	return nil
}

// checkFound does the work of check if no lease has the attachment's key. In a rebuilt registry, leases have no keys,
// because the kernel shows which addresses pods have, but not to which attachments the addresses belong. So checkFound
// checks whether the kernel shows the addresses of prevResult at the attachment's interfaces.
//
// checkFound does not write the attachment's key into the lease. A runtime may call CHECK and DEL for an old container
// whose address a running pod now has. If the lease had the key of the old container, the DEL of the old container
// would end the running pod's lease. A lease without a key stays as long as the kernel shows a user of the address.
func checkFound(ctx context.Context, s *registry.State, r *plugin.Request[Config]) error {
	if r.Prev == nil || len(r.Prev.IPs) == 0 {
		return fmt.Errorf("%s has no lease", key(r))
	}
	nics := plugin.NICs(r.Prev, r.IfName)
	for _, n := range nics {
		for _, a := range n.Addrs() {
			if err := checkUnclaimed(s, r, a); err != nil {
				return err
			}
		}
	}
	return nl.InPod(ctx, r.NetNS, func(_, pod *nl.NS) error {
		for _, n := range nics {
			has, err := pod.Addrs(n.Name)
			if err == nil && !hasAllAddrs(n.Addrs(), has) {
				err = fmt.Errorf("the kernel does not show %v at %s", n.Addrs(), n.Name)
			}
			if err != nil {
				return fmt.Errorf("%s has no lease, and its interfaces lack the addresses of prevResult: %w",
					key(r), err)
			}
		}
		return nil
	})
}

// hasAllAddrs reports whether a link with linkAddrs has all of addrs. If addrs is empty, hasAllAddrs returns false.
func hasAllAddrs(addrs []netip.Addr, linkAddrs []nl.Addr) bool {
	for _, a := range addrs {
		if !slices.ContainsFunc(linkAddrs, func(h nl.Addr) bool { return h.Prefix.Addr() == a && !h.Duplicate }) {
			return false
		}
	}
	return len(addrs) > 0
}

// checkUnclaimed returns an error if another attachment has the address, or can get it.
func checkUnclaimed(s *registry.State, r *plugin.Request[Config], a netip.Addr) error {
	l, leased := s.Leases.At(a)
	id, e := s.ENIOf(a)
	switch {
	case leased && l.Key == (registry.Key{}):
		return onENI(s, r, a)
	case leased:
		return fmt.Errorf("%s has no lease, and %s is leased by %s", key(r), a, l.Key)
	case Unknown(s):
		return nil // no process has rebuilt the registry yet
	case (id == "" || slices.Contains(e.Addrs, a)) && !s.Free.Has(a):
		return nil // the address may be in a prefix that Learn could not record
	}
	return fmt.Errorf("%s has no lease for %s", key(r), a)
}
