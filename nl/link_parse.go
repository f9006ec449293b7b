// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// parseLink reads an answer to RTM_GETLINK. Package netlink has a reader, too, for everything
// that any kind of link may have. That is 1 % of a plugin.
func parseLink(m []byte) (Link, error) {
	msg := nl.DeserializeIfInfomsg(m)
	l := Link{Index: int(msg.Index), Kind: realLink, Up: msg.Flags&unix.IFF_UP != 0}
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
	if err != nil {
		return Link{}, err
	}
	for _, t := range attrs {
		switch t.Attr.Type {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(t.Value)
		case unix.IFLA_ADDRESS:
			if slices.ContainsFunc(t.Value, func(b byte) bool { return b != 0 }) { // lo has none
				l.MAC = net.HardwareAddr(t.Value).String()
			}
		case unix.IFLA_MTU:
			l.MTU = int(number(t.Value))
		case unix.IFLA_LINK:
			l.Peer = int(number(t.Value))
		case unix.IFLA_LINK_NETNSID:
			l.peerNS = number(t.Value) + 1
		case unix.IFLA_IFALIAS:
			l.Alias = unix.ByteSliceToString(t.Value)
		case unix.IFLA_GROUP:
			l.Group = number(t.Value)
		case unix.IFLA_LINKINFO:
			if err := l.parseInfo(t.Value); err != nil {
				return Link{}, err
			}
		}
	}
	return l, nil
}

// parseInfo reads the kind of a link, and then what only links of that kind have.
func (l *Link) parseInfo(info []byte) error {
	attrs, err := nl.ParseRouteAttr(info)
	if err != nil {
		return err
	}
	for _, t := range attrs {
		switch {
		case t.Attr.Type == nl.IFLA_INFO_KIND:
			l.Kind = unix.ByteSliceToString(t.Value)
		case t.Attr.Type == nl.IFLA_INFO_DATA && l.Kind == "ipvlan":
			l.Mode, err = parseMode(t.Value)
		case t.Attr.Type == nl.IFLA_INFO_DATA && (l.Kind == "ipip" || l.Kind == "ip6tnl"):
			l.tunnel = parseTunnel(t.Value)
		}
	}
	return err
}

// parseMode reads the mode of an ipvlan.
func parseMode(data []byte) (mode string, err error) {
	attrs, err := nl.ParseRouteAttr(data)
	for _, t := range attrs {
		if t.Attr.Type == nl.IFLA_IPVLAN_MODE {
			mode = modeName(uint16(number(t.Value)))
		}
	}
	return mode, err
}
