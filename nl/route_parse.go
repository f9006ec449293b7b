// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// parseRoute decodes an answer to RTM_GETROUTE.
func parseRoute(m []byte) kernelRoute {
	msg := nl.DeserializeRtMsg(m)
	r := kernelRoute{Route: Route{Table: uint32(msg.Table), Protocol: int(msg.Protocol)}}
	r.OnLink = msg.Flags&unix.RTNH_F_ONLINK != 0
	r.Type = routeTypes.nameOf(uint32(msg.Type))
	dst := Family(msg.Family).Everywhere().Addr()
	for typ, value := range attrsOf(m[msg.Len():]) {
		switch typ {
		case unix.RTA_DST:
			dst = addrFrom(value)
		case unix.RTA_GATEWAY:
			r.Via = addrFrom(value)
		case unix.RTA_PREFSRC:
			r.Src = addrFrom(value)
		case unix.RTA_TABLE:
			r.Table = nativeUint(value)
		case unix.RTA_OIF:
			r.index = int(nativeUint(value))
		case unix.RTA_PRIORITY:
			r.Metric = int(nativeUint(value))
		case unix.RTA_METRICS:
			r.MTU = routeMTU(value)
		}
	}
	r.Dst = netip.PrefixFrom(dst, int(msg.Dst_len))
	switch r.Type {
	case "blackhole", "unreachable", "prohibit", "throw":
		r.index = 0 // routes of these types have no link, but in IPv6, the kernel gives them the index of lo
	}
	return r
}

func routeMTU(metrics []byte) int {
	for typ, value := range attrsOf(metrics) {
		if typ == unix.RTAX_MTU {
			return int(nativeUint(value))
		}
	}
	return 0
}
