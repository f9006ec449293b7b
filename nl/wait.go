// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LinkByMAC returns the link with that MAC address. If there is none yet it
// waits for one until ctx is done, as for an ENI that has just been attached:
// the kernel needs a moment, and then udev renames the link.
//
// Links that have the MAC address of another (ipvlan, macvlan, VLANs) do not count.
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

// errLost says that the kernel had more to tell than the socket could hold.
var errLost = errors.New("netlink events were lost")

// awaitMAC subscribes, looks, and waits, in this order: what appears after the
// look is an event.
func (n *NS) awaitMAC(ctx context.Context, hw net.HardwareAddr) (Link, error) {
	events, done := make(chan netlink.LinkUpdate), make(chan struct{})
	if err := netlink.LinkSubscribeWithOptions(events, done, netlink.LinkSubscribeOptions{Namespace: &n.fd}); err != nil {
		return Link{}, fmt.Errorf("subscribe: %w", err)
	}
	defer func() {
		close(done)
		for range events { // let the reader end
		}
	}()
	if l, err := n.findMAC(hw); !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	for {
		select {
		case <-ctx.Done():
			return Link{}, context.Cause(ctx)
		case e, ok := <-events:
			if !ok {
				return Link{}, errLost
			}
			if e.Header.Type == unix.RTM_NEWLINK && e.Attrs().HardwareAddr.String() == hw.String() {
				// The event may be older than a second one that has renamed the link.
				if l, err := n.findMAC(hw); !errors.Is(err, fs.ErrNotExist) {
					return l, err
				}
			}
		}
	}
}

func (n *NS) findMAC(hw net.HardwareAddr) (Link, error) {
	links, err := n.Links()
	if err != nil {
		return Link{}, err
	}
	for _, l := range links {
		if l.MAC == hw.String() && !borrows(l) {
			return l, nil
		}
	}
	return Link{}, absence{unix.ENODEV}
}

// borrows says whether a link has its MAC address from the one beneath it.
func borrows(l Link) bool {
	switch l.Kind {
	case "ipvlan", "ipvtap", "macvlan", "macvtap", "vlan":
		return true
	}
	return false
}
