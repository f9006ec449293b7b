// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// parseLink decodes an answer to RTM_GETLINK. The decoder of vishvananda/netlink would make a plugin 1 % larger.
func parseLink(m []byte) Link {
	msg := nl.DeserializeIfInfomsg(m)
	l := Link{Index: int(msg.Index), Kind: RealLink, Up: msg.Flags&unix.IFF_UP != 0}
	for typ, value := range attrsOf(m[msg.Len():]) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(value)
		case unix.IFLA_ADDRESS:
			if slices.ContainsFunc(value, func(b byte) bool { return b != 0 }) { // lo has no MAC address
				l.MAC = net.HardwareAddr(value).String()
			}
		case unix.IFLA_MTU:
			l.MTU = int(nativeUint(value))
		case unix.IFLA_LINK:
			l.Peer = int(nativeUint(value))
		case unix.IFLA_LINK_NETNSID:
			l.peerNS = nativeUint(value) + 1
		case unix.IFLA_IFALIAS:
			l.Alias = unix.ByteSliceToString(value)
		case unix.IFLA_PROP_LIST:
			l.props = value
		case unix.IFLA_GROUP:
			l.Group = nativeUint(value)
		case unix.IFLA_AF_SPEC:
			l.MTU6, l.Forwards = parseMTU6(value), parseForwards4(value)
		case unix.IFLA_LINKINFO:
			l.parseInfo(value)
		}
	}
	return l
}

// parseInfo decodes the kind of a link, and the properties that only links of this kind have.
func (l *Link) parseInfo(info []byte) {
	for typ, value := range attrsOf(info) {
		switch {
		case typ == nl.IFLA_INFO_KIND:
			l.Kind = unix.ByteSliceToString(value)
		case typ == nl.IFLA_INFO_DATA && l.Kind == "ipvlan":
			l.Mode = parseMode(value)
		case typ == nl.IFLA_INFO_DATA && (l.Kind == "ipip" || l.Kind == "ip6tnl"):
			l.tunnel = parseTunnel(value)
		}
	}
}

func parseMode(data []byte) (mode string) {
	for typ, value := range attrsOf(data) {
		if typ == nl.IFLA_IPVLAN_MODE {
			mode = modeName(uint16(nativeUint(value)))
		}
	}
	return mode
}

// parseForwards4 reads the first of the link's IPv4 parameters, IPV4_DEVCONF_FORWARDING of linux/ip.h.
func parseForwards4(families []byte) bool {
	values := attrAt(families, unix.AF_INET, unix.IFLA_INET_CONF)
	return len(values) >= 4 && nativeUint(values[:4]) == 1
}
