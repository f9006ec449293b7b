// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Holder returns a text for people: the name of the pod that has the lease. If the pod is not known, Holder returns the
// network namespace or the container.
func Holder(l registry.Lease) string {
	if l.PodName != "" {
		return "pod " + l.PodNamespace + "/" + l.PodName
	}
	return cmp.Or(l.NetNS, "container "+l.ContainerID)
}

// AnyLeased reports whether match returns true for at least one leased address.
func AnyLeased(s *registry.State, match func(netip.Addr) bool) bool {
	for a := range s.Leases.Keys() {
		if match(a) {
			return true
		}
	}
	return false
}

// AnyWaits reports whether an ADD waits for an address of a pool for which match returns true.
func AnyWaits(s *registry.State, match func(pool string) bool) bool {
	now := time.Now()
	for _, w := range s.Waiters {
		if w.Until.After(now) && match(w.Pool) {
			return true
		}
	}
	return false
}

// AnyPool returns true for each pool. It is an argument for AnyWaits.
func AnyPool(string) bool { return true }
