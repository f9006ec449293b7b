// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// HasHostRoute tells whether the namespace has in its main table a route to this
// very address, a /32 or /128, as it has to the pods behind its links. It asks the
// kernel for one route ("ip route get ADDR fibmatch"), however many there are.
func (n *NS) HasHostRoute(a netip.Addr) (bool, error) {
	msg := &nl.RtMsg{}
	msg.Family, msg.Dst_len, msg.Flags = uint8(familyOf(a)), uint8(a.BitLen()), unix.RTM_F_FIB_MATCH
	found, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETROUTE, 0, unix.RTM_NEWROUTE, msg, attrAddr(unix.RTA_DST, a))
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: route to %s: %w", n.Name, a, err)
	}
	for _, m := range found {
		r, err := parseRoute(m)
		if err != nil {
			return false, fmt.Errorf("%s: route to %s: %w", n.Name, a, err)
		}
		if r.Table == MainTable && r.Dst.IsSingleIP() {
			return true, nil
		}
	}
	return false, nil
}
