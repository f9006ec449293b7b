// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Holder returns who has a lease, as precisely as that is known.
func Holder(l registry.Lease) string {
	if l.PodName != "" {
		return "pod " + l.PodNamespace + "/" + l.PodName
	}
	return cmp.Or(l.NetNS, "container "+l.ContainerID)
}

// AnyLeased reports whether one of the matching addresses is leased.
func AnyLeased(s *registry.State, those func(netip.Addr) bool) bool {
	for a := range s.Leases.Keys() {
		if those(a) {
			return true
		}
	}
	return false
}

// AnyWaits reports whether an ADD of such a pool waits for an address.
func AnyWaits(s *registry.State, of func(pool string) bool) bool {
	now := time.Now()
	for _, w := range s.Waiters {
		if w.Until.After(now) && of(w.Pool) {
			return true
		}
	}
	return false
}

// AnyPool is for ADDs of all pools: see AnyWaits.
func AnyPool(string) bool { return true }
