// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Tunnel is a link that sends IP packets inside UDP packets ("foo over UDP", FOU): IPv4 in IPv4, or IPv6 in IPv6. A
// Tunnel has no remote address. If the inner packet's route has a next hop, the outer packet goes to this next hop.
// Otherwise, the outer packet goes to the inner packet's destination. So one link serves any number of far ends
// (ip_tunnel_xmit, "NBMA tunnel"). Each far end needs a [FOU] at the same port.
//
// The outer source port follows from the inner packet's connection. So EC2 and the hosts can treat each connection as a
// flow of its own, for example on another CPU.
//
// The outer UDP header has no checksum, even in IPv6 (RFC 6935, RFC 6936), because the inner packets have checksums of
// their own. A host that translates the outer addresses would have to correct an outer checksum. The kernel cannot do
// this if it leaves the inner checksum to the network card.
type Tunnel struct {
	Name  string
	Local netip.Addr // the source of the outer packets
	Port  uint16     // the UDP port of the far ends
	MTU   int        // the MTU of the inner packets; 0: Check accepts any MTU
	Group uint32     // see DelGroup; 0 is the default group
}

// The number of bytes that a Tunnel adds to a packet: an IP header and a UDP header.
const (
	tunnelBytes4 = 20 + 8
	tunnelBytes6 = 40 + 8
)

// TunnelMTU returns the MTU of a Tunnel whose outer packets leave through a link with the MTU linkMTU.
func TunnelMTU(f Family, linkMTU int) int {
	if f == IPv6 {
		return linkMTU - tunnelBytes6
	}
	return linkMTU - tunnelBytes4
}

func (t Tunnel) String() string {
	c := command("ip link add").word(t.Name).number("mtu", t.MTU).number("group", int(t.Group))
	if t.Local.Is6() {
		return c.word("type ip6tnl mode ip6ip6").option("local", t.Local.String()).
			word("encaplimit none hoplimit 64 encap fou encap-sport auto").number("encap-dport", int(t.Port)).String()
	}
	return c.word("type ipip").option("local", t.Local.String()).
		word("ttl 64 encap fou encap-sport auto").number("encap-dport", int(t.Port)).String()
}

func (t Tunnel) kind() string {
	if t.Local.Is6() {
		return "ip6tnl"
	}
	return "ipip"
}

func (t Tunnel) module() string {
	if t.Local.Is6() {
		return "fou6"
	}
	return "fou"
}

// Values of linux/if_tunnel.h and linux/ip6_tunnel.h, and the TTL of outer packets.
const (
	encapFOU       = 1
	ignEncapLimit  = 1 // omit the IPv6 option that limits nested tunnels, because the option takes 8 bytes
	tunnelHopLimit = 64
)

// ErrNoTunnel reports that the kernel lacks a part that a Tunnel needs.
var ErrNoTunnel = errors.New("this kernel lacks ipip or ip6_tunnel, or their encapsulation by fou " +
	"(CONFIG_NET_FOU_IP_TUNNELS, the module fou6)")

func (t Tunnel) Add(n *NS) error {
	if err := checkName(t.Name); err != nil {
		return err
	}
	options := []attribute{
		attrAddr(nl.IFLA_IPTUN_LOCAL, t.Local), attr(nl.IFLA_IPTUN_TTL, []byte{tunnelHopLimit}),
		attr(nl.IFLA_IPTUN_PMTUDISC, []byte{1}),
		attr16(nl.IFLA_IPTUN_ENCAP_TYPE, encapFOU), attr(nl.IFLA_IPTUN_ENCAP_DPORT,
			binary.BigEndian.AppendUint16(nil, t.Port)),
	}
	if t.Local.Is6() {
		options = append(options, attr(nl.IFLA_IPTUN_PROTO, []byte{unix.IPPROTO_IPV6}),
			attr32(nl.IFLA_IPTUN_FLAGS, ignEncapLimit))
	}
	msg := linkMessage()
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	add := func() error {
		return n.applyChange(unix.RTM_NEWLINK, addNew, msg, attrString(unix.IFLA_IFNAME, t.Name),
			attr32(unix.IFLA_MTU, uint32(t.MTU)), attr32(unix.IFLA_GROUP, t.Group), linkInfo(t.kind(), options...))
	}
	err := add()
	if errors.Is(err, unix.EINVAL) { // perhaps the encapsulation is in a module that is not loaded yet
		n.loadModule(t.module())
		if err = add(); errors.Is(err, unix.EINVAL) {
			err = addMayNotLoad(err)
		}
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNoTunnel, err)
	}
	return err
}

func (t Tunnel) Del(n *NS) error { return n.delLink(t.Name) }

// Check returns an error if the tunnel is missing or down, or differs from t.
func (t Tunnel) Check(n *NS) error {
	l, err := n.LinkByName(t.Name)
	if err != nil {
		return err
	}
	switch {
	case l.Kind != t.kind():
		return mismatchError(t.Name, l.Kind, t.kind())
	case l.tunnel != tunnel{t.Local, t.Port}:
		return mismatchError(t.Name, l.tunnel, tunnel{t.Local, t.Port})
	case t.MTU != 0 && l.MTU != t.MTU:
		return mismatchError("mtu", l.MTU, t.MTU)
	case t.Group != 0 && l.Group != t.Group:
		return mismatchError("group", l.Group, t.Group)
	case !l.Up:
		return errors.New("the link is down")
	}
	return nil
}

// Tunnel returns the local address and the UDP port of a link that is a [Tunnel]. ok reports whether the link is a
// Tunnel.
func (l Link) Tunnel() (local netip.Addr, port uint16, ok bool) {
	return l.tunnel.local, l.tunnel.port, l.tunnel.port != 0
}

// A tunnel has the properties by which Check recognises a [Tunnel]. For any other link, it is zero.
type tunnel struct {
	local netip.Addr
	port  uint16 // the UDP port of the far ends
}

func (t tunnel) String() string { return fmt.Sprintf("a tunnel of %s by UDP port %d", t.local, t.port) }

// parseTunnel decodes the options of a link of the kind ipip or ip6tnl. It returns the zero value if the link is not a
// [Tunnel].
func parseTunnel(data []byte) (t tunnel) {
	encapsulated := false
	for typ, value := range attrsOf(data) {
		switch {
		case typ == nl.IFLA_IPTUN_LOCAL:
			t.local = addrFrom(value)
		case typ == nl.IFLA_IPTUN_ENCAP_TYPE && len(value) == 2:
			encapsulated = binary.NativeEndian.Uint16(value) == encapFOU
		case typ == nl.IFLA_IPTUN_ENCAP_DPORT && len(value) == 2:
			t.port = binary.BigEndian.Uint16(value)
		case typ == nl.IFLA_IPTUN_REMOTE && addrFrom(value).IsValid() && !addrFrom(value).IsUnspecified():
			return tunnel{} // the link has a remote address
		}
	}
	if !encapsulated {
		return tunnel{}
	}
	return t
}
