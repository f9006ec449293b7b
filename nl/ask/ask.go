// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ask has questions to the kernel that only the commands for people need. Package ask uses vishvananda/netlink,
// which would make each plugin larger and slower. So plugins do not import package ask.
package ask

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// ErrSource reports that the kernel drops a packet because of its source: the route back to the source leads by another
// link than the link by which the packet arrived (rp_filter).
var ErrSource = errors.New("the route back to the packet's source is not by the link by which the packet arrived")

// Leaves returns the link by which a packet from one of the namespace's own addresses leaves for another address,
// according to all rules and tables. Leaves returns "" if no route leads there. The command for this is "ip route get
// TO from FROM".
func Leaves(n *nl.NS, from, to netip.Addr) (dev string, err error) {
	return way(n, to, &netlink.RouteGetOptions{SrcAddr: from.AsSlice()})
}

// Forwards returns the link by which the namespace forwards a packet that arrives by the link iif, according to all
// rules and tables. Forwards returns "" if the kernel forwards no such packet. The command for this is "ip route get TO
// from FROM iif IIF". Forwards assumes that the packet has no mark.
func Forwards(n *nl.NS, iif string, from, to netip.Addr) (dev string, err error) {
	dev, err = way(n, to, &netlink.RouteGetOptions{SrcAddr: from.AsSlice(), Iif: iif})
	// Since Linux 6.14, the kernel answers with EINVAL for each reason to drop a packet that has usual addresses.
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) {
		return "", ErrSource
	}
	return dev, err
}

// way returns the link of the route that the kernel takes to an address, or "" if there is no route.
func way(n *nl.NS, to netip.Addr, how *netlink.RouteGetOptions) (dev string, err error) {
	err = n.Do(func() error {
		found, err := netlink.RouteGetWithOptions(to.AsSlice(), how)
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return nil
		}
		if err != nil || len(found) == 0 || found[0].LinkIndex == 0 {
			return err
		}
		l, err := netlink.LinkByIndex(found[0].LinkIndex)
		if err == nil {
			dev = l.Attrs().Name
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("%s: find the route to %s: %w", n.Name, to, err)
	}
	return dev, nil
}

// Answered reports whether the host with the address a has answered a request for its MAC address by the link dev. The
// request is an ARP request, or a neighbour solicitation of IPv6.
func Answered(n *nl.NS, dev string, a netip.Addr) (is bool, err error) {
	const valid = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT
	err = n.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		all, _ := netlink.NeighList(l.Attrs().Index, int(nl.FamilyOf(a))) // after an error, the caller asks again
		for _, e := range all {
			is = is || e.IP.Equal(a.AsSlice()) && len(e.HardwareAddr) > 0 && e.State&valid != 0
		}
		return nil
	})
	return is, err
}
