// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Veth is a veth pair. The near end is in the namespace that Add gets. The far end (the peer) is in PeerNS. If one
// end is deleted, the kernel deletes both.
//
// The caller chooses the MAC addresses, because udev changes MAC addresses that the kernel has chosen (systemd.link(5),
// MACAddressPolicy=persistent). So the caller can also add a [Neigh], and the kernel does not ask for neighbours.
//
// Each end has one queue in each direction. By default, Linux since 5.15 makes a queue for each possible CPU and tells
// udev about each queue, but uses only one queue (veth_get_num_queues, veth_init_queues).
type Veth struct {
	Name string
	// AltName is an alternative name of the near end, or "". Set it if pairs of different pods use the same Name one
	// after the other. Add then brings up the near end by its AltName, so it never changes the pair of another pod.
	// AltName needs Linux 5.5.
	AltName string
	MAC     string
	Peer    string
	PeerMAC string
	PeerNS  *NS // the namespace of the far end; nil: Check ignores the far end, and Add fails
	MTU     int
	Group   uint32 // the group of the near end; 0 is the default group
	Alias   string // the alias of the near end, 255 bytes at most
	// PeerGroup is the group of the far end. Check ignores this group, because the pod can change it.
	PeerGroup uint32
	PeerDown  bool // Add leaves the far end down
	// NoLinkLocal: the near end gets no IPv6 link-local address when it comes up. Without such an address, the kernel
	// sends no redirects through the near end (RFC 4861, section 8.2). The kernel also cannot ask for neighbours
	// through the near end, so the caller must add them (see [Neigh]).
	NoLinkLocal bool
	// NoRA: the near end ignores IPv6 router advertisements, which any process in PeerNS could send (RFC 4861, section
	// 4.2). Without NoRA, the near end's own sysctls decide: the kernel ignores advertisements if forwarding is 1 and
	// accept_ra is not 2 (ipv6_accept_ra). The sysctl all/forwarding does not count.
	NoRA bool
	// NoRedirects: the near end sends no ICMP redirects of IPv4.
	NoRedirects bool
	// Forwards makes a new near end forward IPv4, even if default/forwarding is 0. Before the kernel forwards a packet,
	// it looks only at the sysctl "forwarding" of the incoming link (ip_route_input_slow).
	Forwards bool
}

func (v Veth) String() string {
	const queues = "numtxqueues 1 numrxqueues 1"
	c := command("ip link add").word(v.Name).word(queues).option("address", v.MAC).number("mtu", v.MTU).number("group",
		int(v.Group))
	if v.Alias != "" {
		c.option("alias", strconv.Quote(v.Alias))
	}
	c.word("type veth peer name").word(v.Peer).word(queues).option("address", v.PeerMAC).number("group",
		int(v.PeerGroup))
	if v.PeerNS != nil {
		c.option("netns", v.PeerNS.Name)
	}
	if v.AltName != "" {
		c.b.WriteString("\n\t" + v.Alternative().String())
	}
	if v.NoLinkLocal {
		c.b.WriteString("\n\tip link set")
		c.word(v.Name).word("addrgenmode none")
	}
	return c.String()
}

func (v Veth) Add(n *NS) error {
	if v.PeerNS == nil {
		return errGone
	}
	attrs, err := v.attrs()
	if err != nil {
		return err
	}
	if err := n.applyChange(unix.RTM_NEWLINK, addNew, linkMessage(), attrs...); err != nil {
		return err
	}
	// So far, the pair is only created. The kernel accepts alternative names and aliases only for existing links, and
	// brings an end up only if the other end exists.
	if v.AltName != "" {
		err = v.Alternative().Add(n)
	}
	if err == nil {
		err = v.setNearUp(n)
	}
	if err == nil && !v.PeerDown {
		err = v.PeerNS.setLink(v.Peer, 0, "")
	}
	switch {
	case err == nil:
	case v.AltName != "": // delete the far end, because the name of the near end may belong to another pair
		n.forgetLink(v.Name)
		_ = v.PeerNS.delLink(v.Peer)
	default:
		_ = n.delLink(v.Name)
	}
	return err
}

// Alternative returns the AltName of the near end as an Object.
func (v Veth) Alternative() AltName { return AltName{Dev: v.Name, MAC: v.MAC, Name: v.AltName} }

func (v Veth) attrs() ([]attribute, error) {
	near, err := v.endAttrs(v.Name, v.MAC, v.Group)
	if err != nil {
		return nil, err
	}
	far, err := v.endAttrs(v.Peer, v.PeerMAC, v.PeerGroup)
	if err != nil {
		return nil, err
	}
	peer := append([]attribute{linkMessage().Serialize(), attr32(unix.IFLA_NET_NS_FD, uint32(v.PeerNS.fd))}, far...)
	return append(near, linkInfo("veth", nest(nl.VETH_INFO_PEER, peer...))), nil
}

func (v Veth) endAttrs(name, mac string, group uint32) ([]attribute, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	attrs := []attribute{attrString(unix.IFLA_IFNAME, name), attr32(unix.IFLA_NUM_TX_QUEUES, 1),
		attr32(unix.IFLA_NUM_RX_QUEUES, 1)}
	if v.MTU > 0 {
		attrs = append(attrs, attr32(unix.IFLA_MTU, uint32(v.MTU)))
	}
	if group != 0 {
		attrs = append(attrs, attr32(unix.IFLA_GROUP, group))
	}
	if mac != "" {
		hw, err := net.ParseMAC(mac)
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, attr(unix.IFLA_ADDRESS, hw))
	}
	return attrs, nil
}

// setNearUp brings the near end up, and sets its alias. The same request sets the properties of NoLinkLocal,
// NoRedirects and Forwards. The kernel sets them after it has brought the link up. This does no harm, because the link
// carries no packets before the far end is up.
func (v Veth) setNearUp(n *NS) error {
	if v.NoRA {
		if err := v.acceptRASysctl().writeValue(n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// One request sets all other properties. Several requests, or writes to several sysctl files, would take several
	// times as long.
	var spec, conf []attribute
	const forwarding, sendRedirects = 1, 6 // IPV4_DEVCONF_FORWARDING, IPV4_DEVCONF_SEND_REDIRECTS of linux/ip.h
	if v.NoRedirects {
		conf = append(conf, attr32(sendRedirects, 0))
	}
	if v.Forwards {
		conf = append(conf, attr32(forwarding, 1))
	}
	if conf != nil {
		spec = append(spec, nest(unix.AF_INET, nest(unix.IFLA_INET_CONF, conf...)))
	}
	name := cmp.Or(v.AltName, v.Name)
	if v.NoLinkLocal {
		inet6 := nest(unix.AF_INET6, attr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{nl.IN6_ADDR_GEN_MODE_NONE}))
		if err := n.setLink(name, 0, v.Alias, nest(unix.IFLA_AF_SPEC, append(spec, inet6)...)); !errors.Is(err,
			unix.EAFNOSUPPORT) {
			return err
		}
		// EAFNOSUPPORT: the kernel has no IPv6, or the MTU is too small for IPv6
	}
	if spec == nil {
		return n.setLink(name, 0, v.Alias)
	}
	return n.setLink(name, 0, v.Alias, nest(unix.IFLA_AF_SPEC, spec...))
}

// Near returns the kernel's state of the near end. fresh reports whether the caller has just created the pair. If fresh
// is true, Near makes PeerNS remember the index of the far end.
func (v Veth) Near(n *NS, fresh bool) (Link, error) {
	l, err := n.LinkByName(v.Name)
	if err == nil && fresh && v.PeerNS != nil && v.PeerNS.indices != nil {
		v.PeerNS.indices[v.Peer] = l.Peer
	}
	return l, err
}

func (v Veth) acceptRASysctl() Sysctl {
	return Sysctl{Key: "net/ipv6/conf/" + v.Name + "/accept_ra", Value: "0"}
}

// DelPair deletes the veth pair of near, which is a link of n. It also deletes the rules whose IIF is near, because the
// kernel does not remove them with the link. It deletes the link by near.Index, so that another link with this name
// stays. If near.Index is 0, it deletes the link by near.Name.
func (n *NS) DelPair(near Link) error {
	pair := Wiring{{n, Veth{Name: near.Name}}}
	defer pair.rememberIndices()()
	if near.Index != 0 {
		n.indices[near.Name] = near.Index
	}
	return errors.Join(n.DelRules(near.Name), pair.Del())
}

func (v Veth) Del(n *NS) error { return n.delLink(v.Name) }

// Check returns an error if an end differs from the Veth v, or if the two ends are not a pair. Check ignores NoRA,
// NoLinkLocal, NoRedirects and Forwards.
func (v Veth) Check(n *NS) error {
	near, err := n.LinkByName(v.Name)
	if err != nil {
		return err
	}
	if err := v.checkEnd(near, v.MAC); err != nil {
		return err
	}
	switch {
	case near.Alias != v.Alias:
		return mismatchError("alias", near.Alias, v.Alias)
	case near.Group != v.Group:
		return mismatchError("group", near.Group, v.Group)
	case v.AltName != "" && !slices.Contains(near.Names(), v.AltName):
		return errors.New(v.Alternative().missingText())
	case v.PeerNS == nil:
		return nil
	}
	far, err := v.PeerNS.LinkByName(v.Peer)
	if err != nil {
		return err
	}
	if far.Peer != near.Index || near.Peer != far.Index {
		return mismatchError("peer of "+v.Name, "another link", v.Peer)
	}
	far.Up = far.Up || v.PeerDown
	return v.checkEnd(far, v.PeerMAC)
}

func (v Veth) checkEnd(l Link, mac string) error {
	switch {
	case l.Kind != "veth":
		return mismatchError(l.Name, l.Kind, "veth")
	case mac != "" && l.MAC != mac:
		return mismatchError("the MAC address of "+l.Name, l.MAC, mac)
	case v.MTU > 0 && l.MTU != v.MTU:
		return mismatchError("mtu of "+l.Name, l.MTU, v.MTU)
	case !l.Up:
		return fmt.Errorf("%s is down", l.Name)
	}
	return nil
}
