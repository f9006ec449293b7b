// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"
)

// An attempt is a way to send packets from a pod to its node. The packets look as if they came from the VPC. All
// packets stay in namespaces of the test.
type attempt struct {
	name  string
	admin bool // the attempt needs CAP_NET_ADMIN
	make  func(v6 bool) error
}

var attempts = []attempt{
	{name: "send to the node from the address of another pod", make: func(v6 bool) error {
		return inject(own, toNode(v6, false))
	}},
	{name: "send to the node from an address outside", make: func(v6 bool) error {
		return inject(own, toNode(v6, true))
	}},
	{name: "send to the node in fragments", make: fragments},
	{name: "send to the node with a VLAN tag", make: func(v6 bool) error { return injectTagged(toNode(v6, false)) }},
	{name: "send to the node past the queue", make: func(v6 bool) error {
		return injectBy(own, toNode(v6, false), unix.PACKET_QDISC_BYPASS)
	}},
	{name: "send to the node through an ifb link", admin: true, make: byIFB},
	{name: "send to a group as the node's neighbour", make: func(v6 bool) error { return neighbour(v6, broadcast) }},
	{name: "claim an address of the VPC", make: func(v6 bool) error { return neighbour(v6, own) }},
	{name: "be a router for the node", make: func(bool) error { return inject(allNodes, advertisement()) }},
	{name: "send to the VPC by the node", make: func(v6 bool) error { return inject(own, toVPC(v6)) }},
}

// These are MAC addresses of frames. own stands for the MAC address of the pod's link, which is also the ENI's.
const own, broadcast, allNodes, falseMAC = "", "ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01", "0a:00:00:00:00:99"

// A packet is the type and the content of a frame.
type packet struct {
	ethertype uint16
	content   []byte
}

func (p packet) tagged(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, p.ethertype), p.content...)
}

// inject sends a frame whose source and destination are the same MAC address.
func inject(mac string, p packet) error { return injectBy(mac, p, 0) }

func injectBy(mac string, p packet, option int) error {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	hw := eth0.HardwareAddr
	if mac != own {
		hw, _ = net.ParseMAC(mac)
	}
	return frame(eth0.Index, p.tagged(slices.Concat(hw, hw)), option, 0)
}

// injectTagged sends a frame with a tag of VLAN 0. The kernel treats it as one without a tag.
func injectTagged(p packet) error {
	return inject(own, packet{unix.ETH_P_8021Q, p.tagged([]byte{0, 0})})
}

func frame(index int, b []byte, option, mark int) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if option != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1)
	}
	if err == nil && mark != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark)
	}
	if err != nil {
		return err
	}
	return unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: index})
}

// byIFB sends a frame through an ifb link. Such a frame skips the filters of the next link.
func byIFB(v6 bool) error {
	const script = `ip link show ifb0 >/dev/null 2>&1 && exit
		ip link add ifb0 type ifb; ip link set ifb0 up
		tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress protocol all handle 7 fw action mirred egress redirect dev ifb0
		tc qdisc add dev ifb0 clsact; tc filter add dev ifb0 egress protocol all handle 7 fw action skbedit mark 0`
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	return frame(eth0.Index, toNode(v6, false).tagged(slices.Concat(eth0.HardwareAddr, eth0.HardwareAddr)), 0, 7)
}

func toNode(v6, outside bool) packet {
	from, to := "10.0.1.66", "10.0.1.5"
	switch {
	case v6 && outside:
		from, to = "2001:db8::66", "fd00:0:0:1::5"
	case v6:
		from, to = "fd00:0:0:1::66", "fd00:0:0:1::5"
	case outside:
		from = "192.0.2.66"
	}
	return udp(from, to, []byte("attempt"))
}

// toVPC returns a packet to a host of the VPC. In IPv6, its source is the node's address.
func toVPC(v6 bool) packet {
	if v6 {
		return udp("fd00::5", "fd00::9", []byte("attempt"))
	}
	return udp("10.0.1.66", "10.0.0.9", []byte("attempt"))
}

// udp returns a datagram to port 9.
func udp(from, to string, text []byte) packet {
	a, b := netip.MustParseAddr(from), netip.MustParseAddr(to)
	d := slices.Concat([]byte{0x12, 0x34, 0, 9, 0, byte(8 + len(text)), 0, 0}, text)
	binary.BigEndian.PutUint16(d[6:], sum(a, b, unix.IPPROTO_UDP, d))
	return ip(a, b, unix.IPPROTO_UDP, 64, 0, d)
}

// ip returns an IP packet. The argument fragment is the IPv4 field with flags and offset.
func ip(from, to netip.Addr, protocol, hops byte, fragment uint16, payload []byte) packet {
	if from.Is6() {
		b := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(payload)))
		return packet{unix.ETH_P_IPV6, slices.Concat(b, []byte{protocol, hops}, from.AsSlice(), to.AsSlice(), payload)}
	}
	b := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(payload)))
	b = binary.BigEndian.AppendUint16(append(b, 0x12, 0x34), fragment)
	b = slices.Concat(b, []byte{hops, protocol, 0, 0}, from.AsSlice(), to.AsSlice())
	binary.BigEndian.PutUint16(b[10:], ^ones(0, b))
	return packet{unix.ETH_P_IP, append(b, payload...)}
}

// fragments sends a datagram in two fragments.
func fragments(v6 bool) error {
	whole := toNode(v6, false).content
	a, b := netip.MustParseAddr("10.0.1.66"), netip.MustParseAddr("10.0.1.5")
	head := 20
	if v6 {
		a, b, head = netip.MustParseAddr("fd00:0:0:1::66"), netip.MustParseAddr("fd00:0:0:1::5"), 40
	}
	for i, part := range [][]byte{whole[head : head+8], whole[head+8:]} {
		more := uint16(1 - i)
		p := ip(a, b, unix.IPPROTO_UDP, 64, more<<13|uint16(i), part)
		if v6 {
			header := []byte{unix.IPPROTO_UDP, 0, 0, byte(i<<3) | byte(more), 1, 2, 3, 4}
			p = ip(a, b, unix.IPPROTO_FRAGMENT, 64, 0, slices.Concat(header, part))
		}
		if err := inject(own, p); err != nil {
			return err
		}
	}
	return nil
}

// neighbour sends a claim that an address of the VPC has the MAC address falseMAC. The argument to is the MAC address
// of the frame, as in inject.
func neighbour(v6 bool, to string) error {
	mac, _ := net.ParseMAC(falseMAC)
	if !v6 {
		addr := []byte{10, 0, 1, 66}
		return inject(to, packet{unix.ETH_P_ARP, slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, 2}, mac, addr, mac, addr)})
	}
	gateway := netip.MustParseAddr("fd00:0:0:1::1")
	group := netip.MustParseAddr("ff02::1")
	message := slices.Concat([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, gateway.AsSlice(), []byte{2, 1}, mac)
	if to == broadcast {
		to = allNodes
	}
	return inject(to, icmp6(gateway, group, message))
}

// advertisement is a router advertisement (RFC 4861, section 4.2).
func advertisement() packet {
	message := slices.Concat([]byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0,
		3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x07, 0x08, 0, 0, 0, 0}, claimed6.Addr().AsSlice())
	return icmp6(netip.MustParseAddr("fe80::66"), netip.MustParseAddr("ff02::1"), message)
}

func icmp6(from, to netip.Addr, message []byte) packet {
	binary.BigEndian.PutUint16(message[2:], sum(from, to, unix.IPPROTO_ICMPV6, message))
	return ip(from, to, unix.IPPROTO_ICMPV6, 255, 0, message)
}

// sum returns the checksum of b with the pseudo-header.
func sum(from, to netip.Addr, protocol byte, b []byte) uint16 {
	s := ones(0, slices.Concat(from.AsSlice(), to.AsSlice(), []byte{0, protocol, byte(len(b) >> 8), byte(len(b))}))
	return ^ones(uint32(s), b)
}

func ones(s uint32, b []byte) uint16 {
	for i, v := range b {
		s += uint32(v) << (8 * (1 - i%2))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
