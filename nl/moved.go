// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A MovedLink is a link that moves from the namespace of the step to the namespace NS. A pod with a MovedLink has a
// network card for itself. The MAC address identifies the link in both namespaces, because the link's name and index
// differ there.
//
// One request moves the link, gives it its name, and sets it up. The kernel sets the link down before the move, because
// the renaming needs a link that is down (do_setlink and dev_change_net_namespace). The kernel carries the request out
// even if the process is killed meanwhile. So the link is either on the node or complete in the pod.
//
// Addresses, routes, neighbours, queueing disciplines and their filters do not move with a link, but the link's
// [Settings] do. The link is down when it is back on the node.
type MovedLink struct {
	Name  string // in the pod
	MAC   string
	NS    *NS    // of the pod; nil if the namespace is gone, and the link is back on the node
	Home  string // the link's name on the node; "" if no process knows it any more
	MTU   int    // 0: Add does not change it
	Group uint32 // in the pod; on the node it is always 0
	Down  bool   // leave the link down: the caller changes something first, and then an Up sets the link up
}

func (v MovedLink) String() string {
	c := command("ip link set").word(cmp.Or(v.Home, v.MAC))
	if v.NS != nil {
		c.option("netns", v.NS.Name)
	}
	return c.option("name", v.Name).number("mtu", v.MTU).number("group", int(v.Group)).flag("up", !v.Down).String()
}

// Add moves the link to the pod. If other links depend on the link, the error is [ErrShared], because the pod would
// also get the traffic of those links.
func (v MovedLink) Add(n *NS) error {
	if v.NS == nil {
		return errGone
	}
	if err := checkName(v.Name); err != nil {
		return err
	}
	if l, err := v.NS.card(v.MAC); err == nil {
		return fmt.Errorf("%s is in %s already: %w", l.Name, v.NS.Name, fs.ErrExist)
	} else if !absent(err) {
		return err
	}
	if _, err := v.NS.linkByName(v.Name); err == nil { // otherwise the kernel would move the link and then fail
		return fmt.Errorf("link %s: %w", v.Name, fs.ErrExist)
	}
	l, err := n.card(v.MAC)
	if err == nil {
		err = n.Unshared(l)
	}
	if err == nil {
		err = n.delPrograms(l) // the card may have come back by itself, when a pod's namespace ended
	}
	if err != nil {
		return err
	}
	if err := v.into(n, l); err != nil {
		v.Home = l.Name
		return errors.Join(err, v.undo(n))
	}
	return nil
}

// into moves the link to the pod.
func (v MovedLink) into(n *NS, l Link) error {
	msg := linkMessage()
	if !v.Down {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	more := []attribute{attr32(unix.IFLA_GROUP, v.Group)}
	if v.MTU > 0 {
		more = append(more, attr32(unix.IFLA_MTU, uint32(v.MTU)))
	}
	return n.move(l, v.NS, v.Name, msg, more...)
}

// undo moves the link back if a failed request has moved it.
func (v MovedLink) undo(n *NS) error {
	if err := v.Del(n); err != nil && !absent(err) {
		return fmt.Errorf("move the link back: %w", err)
	}
	return nil
}

// move moves a link from n to another namespace, and gives it a name there.
func (n *NS) move(l Link, to *NS, name string, msg *nl.IfInfomsg, more ...attribute) error {
	msg.Index = int32(l.Index)
	n.renew(l.Name)
	to.renew(name)
	attrs := []attribute{attr32(unix.IFLA_NET_NS_FD, uint32(to.fd)), attrString(unix.IFLA_IFNAME, name)}
	return n.change(unix.RTM_SETLINK, 0, msg, append(attrs, more...)...)
}

// Del moves the link back to the node, gives the link its name there, and sets it down. Del removes the alternative
// names, links and programs that the pod has attached to the link. Del does not touch a link that another attachment
// has (see [Foreign]).
//
// If the pod's namespace has ended, the link is on the node already, under a name that the kernel has chosen
// (default_device_exit_net). The link's group shows that the link was in the pod. Then Del gives the link its name on
// the node and group 0, and removes the programs.
func (v MovedLink) Del(n *NS) error {
	if v.NS != nil {
		l, err := v.NS.card(v.MAC)
		if err == nil {
			return v.bringBack(n, l)
		}
		if !absent(err) {
			return err
		}
	}
	l, err := n.card(v.MAC)
	if err != nil {
		return err
	}
	if v.Group == 0 || l.Group != v.Group {
		return fmt.Errorf("%s is on the node: %w", l.Name, fs.ErrNotExist)
	}
	return v.reset(n, l)
}

// bringBack moves the link from the pod to the node.
func (v MovedLink) bringBack(n *NS, l Link) error {
	if Foreign(l.Group, v.Group) {
		return fmt.Errorf("%s in %s is of another attachment: %w", l.Name, v.NS.Name, fs.ErrNotExist)
	}
	name, err := v.freeName(n)
	if err != nil {
		return err
	}
	if err := v.NS.delAltNames(l); err != nil {
		return err
	}
	left := v.NS.strip(l) // the card comes back even if a program stays on it: the next Add tries to remove the program
	msg := linkMessage()
	msg.Change = podFlags
	return errors.Join(v.NS.move(l, n, name, msg, attr32(unix.IFLA_GROUP, 0)), left)
}

// podFlags are the flags that a pod can set on a link, and that Del clears.
const podFlags = unix.IFF_UP | unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_NOARP

// freeName returns the name that the link gets on the node: Home. If Home is "", or if another link has this name,
// freeName makes a name of the MAC address. systemd would make the same name (systemd.net-naming-scheme(7),
// ID_NET_NAME_MAC). This name is as long as a name can be.
func (v MovedLink) freeName(n *NS) (string, error) {
	byMAC := "enx" + strings.ReplaceAll(v.MAC, ":", "")
	if v.Home == "" {
		return byMAC, nil
	}
	_, err := n.linkByName(v.Home)
	switch {
	case err == nil:
		return byMAC, nil
	case absent(err):
		return v.Home, nil
	}
	return "", err
}

// reset gives a link that is on the node its name on the node again (freeName), and removes the link from the pod's
// group. If another program has set the link up, the link keeps its present name. The reason is that kernels before 6.2
// do not rename a link that is up.
func (v MovedLink) reset(n *NS, l Link) error {
	left := n.delPrograms(l)
	msg := linkMessage()
	msg.Index = int32(l.Index)
	attrs := []attribute{attr32(unix.IFLA_GROUP, 0)}
	if !l.Up && l.Name != v.Home {
		if err := n.delAltNames(l); err != nil {
			return err
		}
		name, err := v.freeName(n)
		if err != nil {
			return err
		}
		msg.Change = podFlags
		attrs = append(attrs, attrString(unix.IFLA_IFNAME, name))
		n.renew(l.Name)
	}
	return errors.Join(n.change(unix.RTM_SETLINK, 0, msg, attrs...), left)
}

// Check returns an error if the link in the pod differs from the link that Add has made. Check ignores the group,
// because the pod may change it.
func (v MovedLink) Check(*NS) error {
	if v.NS == nil {
		return errGone
	}
	l, err := v.NS.card(v.MAC)
	switch {
	case err != nil:
		return err
	case l.Name != v.Name:
		return differs("the name of the link with MAC address "+v.MAC, l.Name, v.Name)
	case v.MTU != 0 && l.MTU != v.MTU:
		return differs("mtu", l.MTU, v.MTU)
	case !l.Up && !v.Down:
		return errors.New("the link is down")
	}
	return nil
}

// delAltNames deletes the alternative names of a link. The reason is that a pod can choose such names. If a name is in
// use on the node, the kernel refuses to move the link to the node. If a name is the link's own name on the node, the
// kernel moves the link, and refuses to rename it. udev sees that the link comes back, and gives the link udev's
// alternative names again (systemd.link(5), AlternativeNamesPolicy=).
func (n *NS) delAltNames(l Link) error {
	msg := linkMessage()
	msg.Index = int32(l.Index)
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, msg, skipStats())
	if err != nil || len(msgs) != 1 {
		return err
	}
	for t, value := range attrsOf(msgs[0][msg.Len():]) {
		if t == unix.IFLA_PROP_LIST {
			return n.change(unix.RTM_DELLINKPROP, 0, msg, attr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, value))
		}
	}
	return nil
}

// card finds a network card by its MAC address. Unlike [NS.FindMAC], card does not trust a pod: a pod can give the same
// address to other links, even to lo. So card ignores lo, and prefers a real card to a veth pair, which is a card only
// in tests. The error is fs.ErrNotExist if there is no such card.
func (n *NS) card(mac string) (Link, error) {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return Link{}, fmt.Errorf("find a link by its MAC address: %w", err)
	}
	links, err := n.exactLinks()
	if err != nil {
		return Link{}, err
	}
	var veth Link
	for _, l := range links {
		switch {
		case l.MAC != hw.String() || l.Index == loopback:
		case l.Kind == RealLink:
			return l, nil
		case l.Kind == "veth" && veth.Index == 0:
			veth = l
		}
	}
	if veth.Index == 0 {
		return Link{}, fmt.Errorf("%s: find the link with MAC address %s: %w", n.Name, mac, absence{unix.ENODEV})
	}
	return veth, nil
}

// MayBeCard reports whether a link is a network card, or one end of a veth pair, which is a card in tests. Slaves of
// ipvlan are not cards, but they have the MAC address of their card.
func (l Link) MayBeCard() bool {
	return l.Index != loopback && (l.Kind == RealLink || l.Kind == "veth")
}

// loopback is the index of lo in each namespace: LOOPBACK_IFINDEX of net/flow.h.
const loopback = 1
