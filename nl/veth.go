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

// A Veth is a pair of links: the near end in the namespace of the step, and the far end in another namespace. Add
// creates both ends in their final namespaces, and sets them up. If one end is deleted, the kernel deletes both.
//
// The caller chooses the MAC addresses. Otherwise udev would change the near end's MAC address later (systemd.link(5),
// MACAddressPolicy=persistent). If the MAC addresses are known, the kernel also does not have to ask for neighbours.
//
// Each end has one queue in each direction. Otherwise Linux since 5.15 makes a queue for each CPU that the machine can
// have. Linux announces each queue to udev, and then keeps only one queue (veth_get_num_queues, veth_init_queues).
type Veth struct {
	Name string
	// AltName is an alternative name of the near end, or empty. If AltName is set, another pair may have Name before
	// this pair exists, and after it. So Add sets the near end up by AltName. An alternative name needs Linux 5.5.
	AltName string
	MAC     string
	Peer    string
	PeerMAC string
	PeerNS  *NS // nil to delete, or to check the near end alone
	MTU     int
	Group   uint32 // of the near end; 0 is the default group
	Alias   string // of the near end; 255 bytes at most
	// PeerGroup is the group of the far end. Check ignores it, because the pod may change it.
	PeerGroup uint32
	PeerDown  bool // leave the far end down
	// NoLinkLocal makes the kernel give the near end no link-local address when the near end comes up. Without such an
	// address, the near end sends no redirects (RFC 4861, section 8.2). It also cannot ask for its neighbours, so the
	// caller must add them (see [Neigh]).
	NoLinkLocal bool
	// NoRA makes the near end ignore router advertisements, which any process in the other namespace can send (RFC
	// 4861, section 4.2). A node that forwards IPv6 ignores them even without NoRA.
	NoRA bool
	// NoRedirects makes a new near end send no ICMP redirects of IPv4. The sysctl send_redirects can change that.
	NoRedirects bool
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
	if v.NoRA {
		c.b.WriteString("\n\t" + v.advice().String())
	}
	return c.String()
}

// Add creates the pair and sets both ends up.
func (v Veth) Add(n *NS) error {
	if v.PeerNS == nil {
		return errGone
	}
	attrs, err := v.attrs()
	if err != nil {
		return err
	}
	if err := n.change(unix.RTM_NEWLINK, addNew, linkMessage(), attrs...); err != nil {
		return err
	}
	// The kernel accepts alternative names and an alias only for an existing link, and sets one end up only if the
	// other end exists.
	if v.AltName != "" {
		err = v.Alternative().Add(n)
	}
	if err == nil {
		err = v.setUp(n)
	}
	if err == nil && !v.PeerDown {
		err = v.PeerNS.setLink(v.Peer, 0, "")
	}
	switch {
	case err == nil:
	case v.AltName != "": // by the far end, which no other pair has
		n.renew(v.Name)
		_ = v.PeerNS.delLink(v.Peer)
	default:
		_ = n.delLink(v.Name)
	}
	return err
}

// Alternative returns the alternative name of the near end.
func (v Veth) Alternative() AltName { return AltName{Dev: v.Name, MAC: v.MAC, Name: v.AltName} }

// attrs returns the attributes of the message that creates the pair.
func (v Veth) attrs() ([]attribute, error) {
	near, err := v.end(v.Name, v.MAC, v.Group)
	if err != nil {
		return nil, err
	}
	far, err := v.end(v.Peer, v.PeerMAC, v.PeerGroup)
	if err != nil {
		return nil, err
	}
	peer := append([]attribute{linkMessage().Serialize(), attr32(unix.IFLA_NET_NS_FD, uint32(v.PeerNS.fd))}, far...)
	return append(near, linkInfo("veth", nest(nl.VETH_INFO_PEER, peer...))), nil
}

// end returns the attributes of one end.
func (v Veth) end(name, mac string, group uint32) ([]attribute, error) {
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

// setUp sets the near end up. It also sets the mode of link-local addresses, which the kernel accepts only for an
// existing link. One message does both: the kernel first sets the link up, and then sets the mode. The mode is still in
// time, because the link carries no packets before the far end is up.
func (v Veth) setUp(n *NS) error {
	if v.NoRA {
		if err := v.advice().write(n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var spec []attribute
	if v.NoRedirects { // a message of its own, or the sysctl's file, would take the kernel several times as long
		const sendRedirects = 6 // IPV4_DEVCONF_SEND_REDIRECTS of linux/ip.h
		spec = append(spec, nest(unix.AF_INET, nest(unix.IFLA_INET_CONF, attr32(sendRedirects, 0))))
	}
	name := cmp.Or(v.AltName, v.Name)
	if v.NoLinkLocal {
		inet6 := nest(unix.AF_INET6, attr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{nl.IN6_ADDR_GEN_MODE_NONE}))
		if err := n.setLink(name, 0, v.Alias, nest(unix.IFLA_AF_SPEC, append(spec, inet6)...)); !errors.Is(err,
			unix.EAFNOSUPPORT) {
			return err
		}
		// The kernel has no IPv6, or the MTU is too small for IPv6.
	}
	if spec == nil {
		return n.setLink(name, 0, v.Alias)
	}
	return n.setLink(name, 0, v.Alias, nest(unix.IFLA_AF_SPEC, spec...))
}

// Near returns the near end, as the kernel shows it. If fresh is set, the far end's namespace also remembers the index
// of the far end, so no method has to ask for the index.
func (v Veth) Near(n *NS, fresh bool) (Link, error) {
	l, err := n.LinkByName(v.Name)
	if err == nil && fresh && v.PeerNS != nil && v.PeerNS.indices != nil {
		v.PeerNS.indices[v.Peer] = l.Peer
	}
	return l, err
}

// advice returns the sysctl that makes the near end ignore router advertisements.
func (v Veth) advice() Sysctl {
	return Sysctl{Key: "net/ipv6/conf/" + v.Name + "/accept_ra", Value: "0"}
}

// DelPair deletes a veth pair by its end in n, and the rules about that end. The kernel removes the routes and
// neighbours with the link, but not the rules. DelPair deletes the link by near.Index, so another link that has the
// name by now stays. If near.Index is 0, DelPair deletes the link by its name.
func (n *NS) DelPair(near Link) error {
	pair := Wiring{{n, Veth{Name: near.Name}}}
	defer pair.remember()()
	if near.Index != 0 {
		n.indices[near.Name] = near.Index
	}
	return errors.Join(n.DelRules(near.Name), pair.Del())
}

// Del deletes both ends.
func (v Veth) Del(n *NS) error { return n.delLink(v.Name) }

// Check returns an error if an end differs from v, or if the two ends are not a pair. Check ignores NoRA, NoLinkLocal
// and NoRedirects.
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
		return differs("alias", near.Alias, v.Alias)
	case near.Group != v.Group:
		return differs("group", near.Group, v.Group)
	case v.AltName != "" && !slices.Contains(near.Names(), v.AltName):
		return errors.New(v.Alternative().lacking())
	case v.PeerNS == nil:
		return nil
	}
	far, err := v.PeerNS.LinkByName(v.Peer)
	if err != nil {
		return err
	}
	if far.Peer != near.Index || near.Peer != far.Index {
		return differs("peer of "+v.Name, "another link", v.Peer)
	}
	far.Up = far.Up || v.PeerDown
	return v.checkEnd(far, v.PeerMAC)
}

func (v Veth) checkEnd(l Link, mac string) error {
	switch {
	case l.Kind != "veth":
		return differs(l.Name, l.Kind, "veth")
	case mac != "" && l.MAC != mac:
		return differs("the MAC address of "+l.Name, l.MAC, mac)
	case v.MTU > 0 && l.MTU != v.MTU:
		return differs("mtu of "+l.Name, l.MTU, v.MTU)
	case !l.Up:
		return fmt.Errorf("%s is down", l.Name)
	}
	return nil
}
