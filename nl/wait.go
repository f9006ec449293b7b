// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// LinkByMAC returns the link with a MAC address. If there is no such link yet, LinkByMAC waits for it until ctx is
// done. An ENI that has just been attached needs the wait. The kernel takes a moment to make the link, and then udev
// renames the link.
//
// The wait ignores links that have the MAC address of another link (ipvlan, macvlan, VLANs).
func (n *NS) LinkByMAC(ctx context.Context, mac string) (Link, error) {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return Link{}, fmt.Errorf("find a link by its MAC address: %w", err)
	}
	l, err := n.findMAC(hw)
	for errors.Is(err, fs.ErrNotExist) || errors.Is(err, errLost) {
		l, err = n.awaitMAC(ctx, hw)
	}
	if err != nil {
		return Link{}, fmt.Errorf("%s: find the link with MAC address %s: %w", n.Name, mac, err)
	}
	return l, nil
}

// errLost reports that the kernel had more events than the socket could hold.
var errLost = errors.New("netlink events were lost")

// awaitMAC subscribes to the events of links, looks for the link, and waits for an event, in this order. So if the link
// appears after awaitMAC has looked for it, there is an event. The error is errLost if events were lost.
func (n *NS) awaitMAC(ctx context.Context, hw net.HardwareAddr) (Link, error) {
	events, err := nl.SubscribeAt(n.fd, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return Link{}, fmt.Errorf("subscribe to the events of links: %w", err)
	}
	defer events.Close()
	defer context.AfterFunc(ctx, events.Close)()
	for {
		// An event may be out of date, if a later event has renamed the link. So each event is only a reason to look
		// again.
		if l, err := n.findMAC(hw); !errors.Is(err, fs.ErrNotExist) {
			return l, err
		}
		if err := announced(events, hw); err != nil {
			if ctx.Err() != nil {
				return Link{}, context.Cause(ctx)
			}
			return Link{}, errLost
		}
	}
}

// announced waits until the kernel announces a link with the MAC address, or a change of such a link.
func announced(events *nl.NetlinkSocket, hw net.HardwareAddr) error {
	for {
		msgs, from, err := events.Receive()
		if err != nil {
			return err
		}
		for _, m := range msgs {
			if from.Pid == 0 && m.Header.Type == unix.RTM_NEWLINK && parseLink(m.Data).MAC == hw.String() {
				return nil
			}
		}
	}
}

func (n *NS) findMAC(hw net.HardwareAddr) (Link, error) {
	links, err := n.LinksByMAC()
	if err != nil {
		return Link{}, err
	}
	if l, ok := links[hw.String()]; ok {
		return l, nil
	}
	return Link{}, absence{unix.ENODEV}
}

// FindMAC is LinkByMAC without waiting. The error is fs.ErrNotExist if there is no such
// link.
func (n *NS) FindMAC(mac string) (Link, error) {
	hw, err := net.ParseMAC(mac)
	if err == nil {
		var l Link
		if l, err = n.findMAC(hw); err == nil {
			return l, nil
		}
	}
	return Link{}, fmt.Errorf("%s: find the link with MAC address %s: %w", n.Name, mac, err)
}

// LinksByMAC maps MAC addresses to the links of the namespace. It leaves out links that have the MAC address of the
// link below them. If several other links have the same MAC address, the map has the first of these links. LinksByMAC
// fails if changes interrupt each try to list the links, because an ENI without a link in the map gives pods no
// addresses.
func (n *NS) LinksByMAC() (map[string]Link, error) {
	links, err := n.exactLinks()
	if err != nil {
		return nil, err
	}
	return ByMAC(links), nil
}

// LinksOf is LinksByMAC for callers who need only some links, and who know the earlier names of these links. names maps
// MAC addresses to these names. If a link no longer has its earlier name, LinksOf does what LinksByMAC does. The cost
// of a list of all links grows with the square of the number of pairs. The reason is that for each pair, the kernel
// goes through all namespaces that n knows (net_eq_idr).
func (n *NS) LinksOf(names map[string]string) (map[string]Link, error) {
	links := map[string]Link{}
	for mac, name := range names {
		l, err := n.LinkByName(name)
		if err != nil || !l.Owns(mac) {
			return n.LinksByMAC()
		}
		links[mac] = l
	}
	return links, nil
}

// ByMAC maps MAC addresses to links, as LinksByMAC does. The links must be in the order of Links.
func ByMAC(links []Link) map[string]Link {
	byMAC := map[string]Link{}
	for _, l := range links {
		if _, known := byMAC[l.MAC]; !known && !borrows(l) {
			byMAC[l.MAC] = l
		}
	}
	return byMAC
}

// Owns reports whether the link has the MAC address, and does not borrow it.
func (l Link) Owns(mac string) bool { return l.MAC == mac && !borrows(l) }

// borrows reports whether a link has the MAC address of the link below it.
func borrows(l Link) bool {
	switch l.Kind {
	case "ipvlan", "ipvtap", "macvlan", "macvtap", "vlan":
		return true
	}
	return false
}
