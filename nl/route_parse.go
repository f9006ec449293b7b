// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// parseRoute reads an answer to RTM_GETROUTE.
func parseRoute(m []byte) (kernelRoute, error) {
	msg := nl.DeserializeRtMsg(m)
	r := kernelRoute{Route: Route{Table: uint32(msg.Table), Protocol: int(msg.Protocol)}}
	r.OnLink = msg.Flags&unix.RTNH_F_ONLINK != 0
	for name, t := range routeTypes {
		if t == int(msg.Type) {
			r.Type = name
		}
	}
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
	if err != nil {
		return r, err
	}
	dst := Family(msg.Family).Everywhere().Addr()
	for _, t := range attrs {
		switch t.Attr.Type {
		case unix.RTA_DST:
			dst = addrFrom(t.Value)
		case unix.RTA_GATEWAY:
			r.Via = addrFrom(t.Value)
		case unix.RTA_PREFSRC:
			r.Src = addrFrom(t.Value)
		case unix.RTA_TABLE:
			r.Table = number(t.Value)
		case unix.RTA_OIF:
			r.index = int(number(t.Value))
		case unix.RTA_PRIORITY:
			r.Metric = int(number(t.Value))
		case unix.RTA_METRICS:
			r.MTU = routeMTU(t.Value)
		}
	}
	r.Dst = netip.PrefixFrom(dst, int(msg.Dst_len))
	switch r.Type {
	case "blackhole", "unreachable", "prohibit", "throw":
		r.index = 0 // IPv6 names the loopback link
	}
	return r, nil
}

func routeMTU(metrics []byte) int {
	attrs, err := nl.ParseRouteAttr(metrics)
	if err != nil {
		return 0
	}
	for _, t := range attrs {
		if t.Attr.Type == unix.RTAX_MTU {
			return int(number(t.Value))
		}
	}
	return 0
}
