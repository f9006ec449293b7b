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

// LinkByMAC returns the link with the given MAC address. If there is no such link yet, LinkByMAC waits for it until ctx
// is done. After EC2 has attached an ENI, it takes a moment until the kernel makes the link and udev renames it.
//
// LinkByMAC ignores links that borrow the MAC address of another link (see borrowsMAC).
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

// errLost reports that the socket's buffer overflowed, so the kernel dropped events.
var errLost = errors.New("netlink events were lost")

// awaitMAC waits until there is a link with the given MAC address. It subscribes to events about links before it looks
// for the link, so it misses no event. The error is errLost if events were lost.
func (n *NS) awaitMAC(ctx context.Context, hw net.HardwareAddr) (Link, error) {
	events, err := nl.SubscribeAt(n.fd, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return Link{}, fmt.Errorf("subscribe to the events of links: %w", err)
	}
	defer events.Close()
	defer context.AfterFunc(ctx, events.Close)()
	for {
		// Look again instead of returning the event's link, which udev may have renamed.
		if l, err := n.findMAC(hw); !errors.Is(err, fs.ErrNotExist) {
			return l, err
		}
		if err := awaitEvent(events, hw); err != nil {
			if ctx.Err() != nil {
				return Link{}, context.Cause(ctx)
			}
			return Link{}, errLost
		}
	}
}

// awaitEvent waits for an event about a new or changed link with the MAC address hw.
func awaitEvent(events *nl.NetlinkSocket, hw net.HardwareAddr) error {
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
	return Link{}, notExistError{unix.ENODEV}
}

// FindMAC is like LinkByMAC, but does not wait. The error is fs.ErrNotExist if there is no such link.
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

// LinksByMAC maps MAC addresses to the links of the namespace. It leaves out links that borrow the MAC address of the
// link below them. If several of the remaining links have the same MAC address, the map has the first of them. If links
// change while the kernel lists them, LinksByMAC tries again, and fails after ten tries. If the map lacked the link of
// an ENI, pods would get no addresses of this ENI.
func (n *NS) LinksByMAC() (map[string]Link, error) {
	links, err := n.exactLinks()
	if err != nil {
		return nil, err
	}
	return ByMAC(links), nil
}

// LinksOf is like LinksByMAC, but faster for a caller that needs only some links. names has the earlier names of these
// links, by MAC address. If a link no longer has its earlier name, LinksOf returns what LinksByMAC returns. LinksByMAC
// lists all links: for each veth pair, the kernel goes through all namespaces with an ID in n (net_eq_idr). So the cost
// of LinksByMAC grows with the square of the number of pairs.
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

// ByMAC maps MAC addresses to links, as LinksByMAC does. links must be in the order in which Links returns them.
func ByMAC(links []Link) map[string]Link {
	byMAC := map[string]Link{}
	for _, l := range links {
		if _, known := byMAC[l.MAC]; !known && !borrowsMAC(l) {
			byMAC[l.MAC] = l
		}
	}
	return byMAC
}

// Owns reports whether the MAC address belongs to the link itself: the link does not borrow it (see borrowsMAC).
func (l Link) Owns(mac string) bool { return l.MAC == mac && !borrowsMAC(l) }

// borrowsMAC reports whether a link borrows its MAC address: ipvlan, macvlan and VLAN links have the MAC address of the
// link below them.
func borrowsMAC(l Link) bool {
	switch l.Kind {
	case "ipvlan", "ipvtap", "macvlan", "macvtap", "vlan":
		return true
	}
	return false
}
