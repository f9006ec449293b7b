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

// LinkByMAC returns the link with a MAC address. If there is none yet it waits until ctx is
// done. An ENI that has just been attached needs this: the kernel takes a moment, and then udev
// renames the link.
//
// The wait ignores links that have the MAC address of another link (ipvlan, macvlan, VLANs).
func (n *NS) LinkByMAC(ctx context.Context, mac string) (Link, error) {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return Link{}, fmt.Errorf("link by MAC address: %w", err)
	}
	l, err := n.findMAC(hw)
	for errors.Is(err, fs.ErrNotExist) || errors.Is(err, errLost) {
		l, err = n.awaitMAC(ctx, hw)
	}
	if err != nil {
		return Link{}, fmt.Errorf("%s: link with MAC address %s: %w", n.Name, mac, err)
	}
	return l, nil
}

// errLost reports that the kernel had more events than the socket could hold.
var errLost = errors.New("netlink events were lost")

// awaitMAC subscribes, looks, and waits, in this order: a link that appears after the look is an
// event.
func (n *NS) awaitMAC(ctx context.Context, hw net.HardwareAddr) (Link, error) {
	events, err := nl.SubscribeAt(n.fd, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return Link{}, fmt.Errorf("subscribe: %w", err)
	}
	defer events.Close()
	defer context.AfterFunc(ctx, events.Close)()
	for {
		// An event may be older than a second one that has renamed the link. So each is only a reason to look.
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

// announced waits until the kernel announces a link with the MAC address, or a change of one.
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
	return Link{}, fmt.Errorf("%s: link with MAC address %s: %w", n.Name, mac, err)
}

// LinksByMAC maps MAC addresses to the links of the namespace that have them as their own. If
// several links have the same one, it is the first, on which the others were made. The list is
// complete: an ENI without a link gives pods no addresses.
func (n *NS) LinksByMAC() (map[string]Link, error) {
	links, err := n.exactLinks()
	if err != nil {
		return nil, err
	}
	return ByMAC(links), nil
}

// ByMAC maps MAC addresses to links, as LinksByMAC does. The links are in the order of Links.
func ByMAC(links []Link) map[string]Link {
	byMAC := map[string]Link{}
	for _, l := range links {
		if _, known := byMAC[l.MAC]; !known && !borrows(l) {
			byMAC[l.MAC] = l
		}
	}
	return byMAC
}

// borrows reports whether a link has the MAC address of the link below it.
func borrows(l Link) bool {
	switch l.Kind {
	case "ipvlan", "ipvtap", "macvlan", "macvtap", "vlan":
		return true
	}
	return false
}
