// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HasHostRoute tells whether the namespace has in its main table a route to this
// very address, a /32 or /128, as it has to the pods behind its links. It asks the
// kernel for one route ("ip route get ADDR fibmatch"), however many there are.
func (n *NS) HasHostRoute(a netip.Addr) (bool, error) {
	found, err := n.route.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: route to %s: %w", n.Name, a, err)
	}
	for _, r := range found {
		if r.Table != unix.RT_TABLE_MAIN || r.Dst == nil {
			continue
		}
		if ones, bits := r.Dst.Mask.Size(); ones == bits {
			return true, nil
		}
	}
	return false, nil
}
