// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// HasHostRoute tells whether the namespace has in its main table a route to this
// very address, a /32 or /128, as it has to the pods behind its links. It asks the
// kernel for one route ("ip route get ADDR fibmatch"), however many there are.
func (n *NS) HasHostRoute(a netip.Addr) (bool, error) {
	r, err := n.lookup(unix.RTM_F_FIB_MATCH, netip.Addr{}, a)
	return err == nil && r.Table == MainTable && r.Dst.IsSingleIP(), err
}

// DefaultSource is the address that the default route by a link says is to be the source of
// what the namespace itself sends ("ip route get ADDR oif DEV fibmatch"). It is the zero
// address if there is no such route, or it says none.
func (n *NS) DefaultSource(dev string, v6 bool) (netip.Addr, error) {
	anybody := netip.AddrFrom4([4]byte{192, 0, 2, 1}) // RFC 5737 and RFC 3849: to documentation nothing narrower leads
	if v6 {
		anybody = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
	}
	index, err := n.index(dev)
	if err != nil {
		return netip.Addr{}, err
	}
	r, err := n.lookup(unix.RTM_F_FIB_MATCH, netip.Addr{}, anybody, attr32(unix.RTA_OIF, uint32(index)))
	if err != nil || r.Dst.Bits() != 0 {
		return netip.Addr{}, err
	}
	return r.Src, nil
}

// Leaves names the link by which what the namespace sends from one of its own addresses
// leaves for another ("ip route get TO from FROM"), whichever rules and tables say so. It is
// "" if nothing leads there.
func (n *NS) Leaves(from, to netip.Addr) (dev string, err error) {
	r, err := n.lookup(0, from, to)
	if err != nil || r.index == 0 {
		return "", err
	}
	msg := linkMessage()
	msg.Index = int32(r.index)
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, msg, skipStats())
	if err != nil || len(msgs) != 1 {
		return "", err // it has gone meanwhile
	}
	l, err := parseLink(msgs[0])
	return l.Name, err
}

// lookup asks for the route that leads from an address, or the zero address for whichever,
// to another. Where there is none it is the zero route.
func (n *NS) lookup(flags uint32, from, a netip.Addr, more ...nl.NetlinkRequestData) (kernelRoute, error) {
	msg := &nl.RtMsg{}
	msg.Family, msg.Src_len, msg.Dst_len, msg.Flags = uint8(familyOf(a)), uint8(from.BitLen()), uint8(a.BitLen()), flags
	data := append([]nl.NetlinkRequestData{msg, attrAddr(unix.RTA_DST, a)}, more...)
	if from.IsValid() {
		data = append(data, attrAddr(unix.RTA_SRC, from))
	}
	found, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETROUTE, 0, unix.RTM_NEWROUTE, data...)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || err == nil && len(found) == 0 {
		return kernelRoute{}, nil
	}
	var r kernelRoute
	if err == nil {
		r, err = parseRoute(found[0])
	}
	if err != nil {
		return r, fmt.Errorf("%s: route to %s: %w", n.Name, a, err)
	}
	return r, nil
}
