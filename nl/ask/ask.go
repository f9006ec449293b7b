// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ask has the questions that our command-line tool asks the kernel. Plugins must not import this package,
// because vishvananda/netlink would make them larger and slower.
package ask

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// ErrSource reports that the kernel drops a packet because of its source (rp_filter). The packet arrived through one
// link, but the route back to its source uses another link.
var ErrSource = errors.New("the route back to the packet's source does not use the link by which the packet arrived")

// Leaves returns the name of the link through which the namespace sends a packet of its own from one address to
// another. It does the same as "ip route get TO from FROM", and returns "" if there is no route.
func Leaves(n *nl.NS, from, to netip.Addr) (dev string, err error) {
	return routeLink(n, to, &netlink.RouteGetOptions{SrcAddr: from.AsSlice()})
}

// Forwards returns the name of the link through which the namespace forwards a packet that arrives through the link
// iif. It does the same as "ip route get TO from FROM iif IIF", and returns "" if the namespace does not forward the
// packet. It assumes that the packet has no mark.
func Forwards(n *nl.NS, iif string, from, to netip.Addr) (dev string, err error) {
	dev, err = routeLink(n, to, &netlink.RouteGetOptions{SrcAddr: from.AsSlice(), Iif: iif})
	// If the kernel drops a packet because of its source, Linux before 6.14 reports EXDEV. Later kernels report EINVAL,
	// also for packets that they drop for other reasons.
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) {
		return "", ErrSource
	}
	return dev, err
}

// routeLink asks the kernel for a route to an address, and returns the name of the route's link. It returns "" if there
// is no route.
func routeLink(n *nl.NS, to netip.Addr, how *netlink.RouteGetOptions) (dev string, err error) {
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

// Answered reports whether the kernel knows the MAC address for addr on the link dev. This is so if a host has answered
// (ARP, or IPv6 neighbour discovery), or if the neighbour entry is permanent. Answered itself sends no request.
func Answered(n *nl.NS, dev string, addr netip.Addr) (is bool, err error) {
	const valid = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT
	err = n.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		all, _ := netlink.NeighList(l.Attrs().Index, int(nl.FamilyOf(addr))) // after an error, the caller asks again
		for _, e := range all {
			is = is || e.IP.Equal(addr.AsSlice()) && len(e.HardwareAddr) > 0 && e.State&valid != 0
		}
		return nil
	})
	return is, err
}
