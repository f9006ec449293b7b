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

// HasHostRoute reports whether the main table has a host route to an address (/32 or /128). The node's main table has
// such a route to each pod. HasHostRoute asks the kernel for one route ("ip route get ADDR fibmatch") instead of a
// list.
func (n *NS) HasHostRoute(a netip.Addr) (bool, error) {
	r, err := n.lookupRoute(a)
	return err == nil && r.Table == MainTable && r.Dst.IsSingleIP(), err
}

// HostRoutes lists the addresses for which HasHostRoute returns true. It fails if the kernel's list is perhaps
// incomplete, because callers need the addresses of all pods.
func (n *NS) HostRoutes() (addrs []netip.Addr, err error) {
	routes, err := n.exactRoutes(RouteFilter{Table: MainTable})
	for _, r := range routes {
		if r.Dst.IsSingleIP() {
			addrs = append(addrs, r.Dst.Addr())
		}
	}
	return addrs, err
}

// DefaultSource returns the source address (src) of the default route through the link dev, or the zero netip.Addr if
// there is no such route or no such address. It does the same as "ip route get ADDR oif DEV fibmatch".
func (n *NS) DefaultSource(dev string, family Family) (netip.Addr, error) {
	// an address for documentation (RFC 5737, RFC 3849): only the default route leads to it
	far := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if family == IPv6 {
		far = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
	}
	index, err := n.linkIndex(dev)
	if err != nil {
		return netip.Addr{}, err
	}
	r, err := n.lookupRoute(far, attr32(unix.RTA_OIF, uint32(index)))
	if err != nil || r.Dst.Bits() != 0 {
		return netip.Addr{}, err
	}
	return r.Src, nil
}

// lookupRoute returns the route that the kernel chooses for packets to an address, or the zero kernelRoute if there is
// none. The attributes in the argument "more" limit the kernel's choice.
func (n *NS) lookupRoute(a netip.Addr, more ...attribute) (kernelRoute, error) {
	msg := &nl.RtMsg{}
	msg.Family, msg.Dst_len, msg.Flags = uint8(FamilyOf(a)), uint8(a.BitLen()), unix.RTM_F_FIB_MATCH
	attrs := append([]attribute{attrAddr(unix.RTA_DST, a)}, more...)
	found, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETROUTE, 0, unix.RTM_NEWROUTE, msg, attrs...)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || err == nil && len(found) == 0 {
		return kernelRoute{}, nil
	}
	if err != nil {
		return kernelRoute{}, fmt.Errorf("%s: find the route to %s: %w", n.Name, a, err)
	}
	return parseRoute(found[0]), nil
}
