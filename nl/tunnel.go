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

// A Tunnel puts packets into UDP ("foo over UDP", FOU): IPv4 in IPv4, or IPv6 in IPv6. A Tunnel has no remote address.
// A packet goes to the next hop of its route. If the route has no next hop, the packet goes to its own destination. So
// one link serves any number of far ends (ip_tunnel_xmit, "NBMA tunnel"). The other side needs a [FOU] at the same
// port.
//
// The kernel chooses the source port by the connection of the packet inside. So EC2 and the CPUs see several flows, and
// not one flow.
//
// The UDP header has no checksum, even in IPv6 (RFC 6935, RFC 6936). The reason is that a host may translate the
// addresses of the outer packet. If the network card computes the checksum of the packet inside, the kernel cannot also
// correct a checksum outside. The packets inside have checksums of their own.
type Tunnel struct {
	Name  string
	Local netip.Addr // source of the packets outside
	Port  uint16     // UDP port of the far ends
	MTU   int        // of the packets inside; for Check, 0 is any
	Group uint32     // links to be deleted together; 0 is the default group
}

// The bytes that a tunnel adds: the header of IP and the header of UDP.
const (
	tunnelBytes4 = 20 + 8
	tunnelBytes6 = 40 + 8
)

// TunnelMTU returns the MTU of a tunnel whose packets leave by a link with the MTU mtu.
func TunnelMTU(f Family, mtu int) int {
	if f == IPv6 {
		return mtu - tunnelBytes6
	}
	return mtu - tunnelBytes4
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

// module returns the name of the module that has the encapsulation.
func (t Tunnel) module() string {
	if t.Local.Is6() {
		return "fou6"
	}
	return "fou"
}

// The values of linux/if_tunnel.h and linux/ip6_tunnel.h.
const (
	encapFOU       = 1
	ignEncapLimit  = 1 // leave out the IPv6 option that limits the encapsulation: it takes 8 bytes
	tunnelHopLimit = 64
)

// ErrNoTunnel reports that the kernel lacks a part that a tunnel needs.
var ErrNoTunnel = errors.New("this kernel lacks ipip or ip6_tunnel, or their encapsulation by fou " +
	"(CONFIG_NET_FOU_IP_TUNNELS, the module fou6)")

// Add creates the tunnel, and sets it up.
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
		return n.change(unix.RTM_NEWLINK, addNew, msg, attrString(unix.IFLA_IFNAME, t.Name),
			attr32(unix.IFLA_MTU, uint32(t.MTU)), attr32(unix.IFLA_GROUP, t.Group), linkInfo(t.kind(), options...))
	}
	err := add()
	if errors.Is(err, unix.EINVAL) { // the encapsulation may be in a module
		n.loadModule(t.module())
		if err = add(); errors.Is(err, unix.EINVAL) {
			err = unloaded(err)
		}
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNoTunnel, err)
	}
	return err
}

// Del deletes the tunnel.
func (t Tunnel) Del(n *NS) error { return n.delLink(t.Name) }

// Check returns an error if the tunnel is missing or down, or differs from t.
func (t Tunnel) Check(n *NS) error {
	l, err := n.LinkByName(t.Name)
	if err != nil {
		return err
	}
	switch {
	case l.Kind != t.kind():
		return differs(t.Name, l.Kind, t.kind())
	case l.tunnel != tunnel{t.Local, t.Port}:
		return differs(t.Name, l.tunnel, tunnel{t.Local, t.Port})
	case t.MTU != 0 && l.MTU != t.MTU:
		return differs("mtu", l.MTU, t.MTU)
	case t.Group != 0 && l.Group != t.Group:
		return differs("group", l.Group, t.Group)
	case !l.Up:
		return errors.New("the link is down")
	}
	return nil
}

// Tunnel reports whether the link is a [Tunnel], and returns its local address and the UDP port.
func (l Link) Tunnel() (local netip.Addr, port uint16, is bool) {
	return l.tunnel.local, l.tunnel.port, l.tunnel.port != 0
}

// A tunnel has the properties by which a link that is a [Tunnel] differs from other links of its kind.
type tunnel struct {
	local netip.Addr
	port  uint16 // of FOU
}

func (t tunnel) String() string { return fmt.Sprintf("a tunnel of %s by UDP port %d", t.local, t.port) }

// parseTunnel reads the options of a link of the kind ipip or ip6tnl. It returns the zero tunnel if the link is not a
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
			return tunnel{} // it has a remote address
		}
	}
	if !encapsulated {
		return tunnel{}
	}
	return t
}
