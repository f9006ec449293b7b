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

// A MovedLink moves a network card from the node (the namespace of the Step) to a pod, which then has the card for
// itself. A MovedLink names the card by the card's MAC address, because the link may have another name and index in the
// pod.
//
// One request moves the link, renames it and brings it up. Kernels before 6.2 rename only links that are down, but the
// move itself brings the link down first (dev_change_net_namespace). A kill does not interrupt the request. So the link
// is either on the node, or in the pod with its new name and up.
//
// When a link moves, it loses its addresses, its routes, its neighbours, and its queueing disciplines with their
// filters. It keeps its [Settings].
type MovedLink struct {
	Name  string // the link's name in the pod
	MAC   string
	NS    *NS    // the pod's namespace; nil: the namespace is gone, so the link is back on the node
	Home  string // the link's name on the node; "" if it is not known any more
	MTU   int    // 0: Add does not change the MTU
	Group uint32 // the link's group in the pod; on the node, the group is 0
	Down  bool   // Add leaves the link down: a later Up in the Wiring brings it up
}

func (v MovedLink) String() string {
	c := command("ip link set").word(cmp.Or(v.Home, v.MAC))
	if v.NS != nil {
		c.option("netns", v.NS.Name)
	}
	return c.option("name", v.Name).number("mtu", v.MTU).number("group", int(v.Group)).flag("up", !v.Down).String()
}

// Add returns [ErrShared] if other links use the link (see [NS.Unshared]), because the pod would also get the traffic
// of these links.
func (v MovedLink) Add(n *NS) error {
	if v.NS == nil {
		return errGone
	}
	if err := checkName(v.Name); err != nil {
		return err
	}
	if l, err := v.NS.findCard(v.MAC); err == nil {
		return fmt.Errorf("%s is in %s already: %w", l.Name, v.NS.Name, fs.ErrExist)
	} else if !isNotExist(err) {
		return err
	}
	// without this check, the kernel would move the link and then fail to rename it
	if _, err := v.NS.rawLinkByName(v.Name); err == nil {
		return fmt.Errorf("link %s: %w", v.Name, fs.ErrExist)
	}
	l, err := n.findCard(v.MAC)
	if err == nil {
		err = n.Unshared(l)
	}
	if err == nil {
		// programs of another pod may still be attached: at the end of a namespace, the kernel moves the card back with
		// these programs
		err = n.delPrograms(l)
	}
	if err != nil {
		return err
	}
	if err := v.moveToPod(n, l); err != nil {
		v.Home = l.Name
		return errors.Join(err, v.undoMove(n))
	}
	return nil
}

func (v MovedLink) moveToPod(n *NS, l Link) error {
	msg := linkMessage()
	if !v.Down {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	more := []attribute{attr32(unix.IFLA_GROUP, v.Group)}
	if v.MTU > 0 {
		more = append(more, attr32(unix.IFLA_MTU, uint32(v.MTU)))
	}
	return n.moveLink(l, v.NS, v.Name, msg, more...)
}

// undoMove moves the link back to the node, if a failed request has moved it.
func (v MovedLink) undoMove(n *NS) error {
	if err := v.Del(n); err != nil && !isNotExist(err) {
		return fmt.Errorf("move the link back: %w", err)
	}
	return nil
}

func (n *NS) moveLink(l Link, to *NS, name string, msg *nl.IfInfomsg, more ...attribute) error {
	msg.Index = int32(l.Index)
	n.forgetLink(l.Name)
	to.forgetLink(name)
	attrs := []attribute{attr32(unix.IFLA_NET_NS_FD, uint32(to.fd)), attrString(unix.IFLA_IFNAME, name)}
	return n.applyChange(unix.RTM_SETLINK, 0, msg, append(attrs, more...)...)
}

// Del first removes the alternative names, links and programs that the pod has attached to the link. Del then moves the
// link back to the node, renames it (see freeName), and brings it down. If the link in the pod belongs to another
// attachment (see [Foreign]), Del does nothing.
//
// At the end of the pod's namespace, the kernel itself moves the link to the node, with its group, and perhaps renames
// it (default_device_exit_net). For such a link, see resetOnNode.
func (v MovedLink) Del(n *NS) error {
	if v.NS != nil {
		l, err := v.NS.findCard(v.MAC)
		if err == nil {
			return v.bringBack(n, l)
		}
		if !isNotExist(err) {
			return err
		}
	}
	l, err := n.findCard(v.MAC)
	if err != nil {
		return err
	}
	if v.Group == 0 || l.Group != v.Group {
		return fmt.Errorf("%s is on the node: %w", l.Name, fs.ErrNotExist)
	}
	return v.resetOnNode(n, l)
}

func (v MovedLink) bringBack(n *NS, l Link) error {
	if Foreign(l.Group, v.Group) {
		return fmt.Errorf("%s in %s belongs to another attachment: %w", l.Name, v.NS.Name, fs.ErrNotExist)
	}
	name, err := v.freeName(n)
	if err != nil {
		return err
	}
	if err := v.NS.delAltNames(l); err != nil {
		return err
	}
	left := v.NS.stripCard(l) // after an error, move the link anyway: the next Add tries again to remove the programs
	msg := linkMessage()
	msg.Change = podFlags
	return errors.Join(v.NS.moveLink(l, n, name, msg, attr32(unix.IFLA_GROUP, 0)), left)
}

// podFlags has the flags that a pod can set on a link, and that Del clears.
const podFlags = unix.IFF_UP | unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_NOARP

// freeName returns the name for the link on the node. This is Home if Home is known and free. Otherwise, it is the name
// that systemd makes from the MAC address (systemd.net-naming-scheme(7), ID_NET_NAME_MAC).
func (v MovedLink) freeName(n *NS) (string, error) {
	byMAC := "enx" + strings.ReplaceAll(v.MAC, ":", "")
	if v.Home == "" {
		return byMAC, nil
	}
	_, err := n.rawLinkByName(v.Home)
	switch {
	case err == nil:
		return byMAC, nil
	case isNotExist(err):
		return v.Home, nil
	}
	return "", err
}

// resetOnNode completes Del for a link that the kernel itself has moved to the node. It removes the programs, sets the
// link's group to 0, and renames the link (see freeName). Kernels before 6.2 cannot rename a link that is up. So a link
// that another program has brought up keeps its present name.
func (v MovedLink) resetOnNode(n *NS, l Link) error {
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
		n.forgetLink(l.Name)
	}
	return errors.Join(n.applyChange(unix.RTM_SETLINK, 0, msg, attrs...), left)
}

// Check ignores the group, because the pod can change it.
func (v MovedLink) Check(*NS) error {
	if v.NS == nil {
		return errGone
	}
	l, err := v.NS.findCard(v.MAC)
	switch {
	case err != nil:
		return err
	case l.Name != v.Name:
		return mismatchError("the name of the link with MAC address "+v.MAC, l.Name, v.Name)
	case v.MTU != 0 && l.MTU != v.MTU:
		return mismatchError("mtu", l.MTU, v.MTU)
	case !l.Up && !v.Down:
		return errors.New("the link is down")
	}
	return nil
}

// delAltNames deletes the alternative names of a link before the link gets its name on the node. A pod can choose
// alternative names. If such a name is also the name of another link on the node, the kernel does not move the card to
// the node. If such a name is the card's own name on the node, the kernel moves the card, but refuses to rename it. On
// the node, udev adds its own alternative names again (systemd.link(5), AlternativeNamesPolicy=).
func (n *NS) delAltNames(l Link) error {
	msg := linkMessage()
	msg.Index = int32(l.Index)
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, msg, skipStats())
	if err != nil || len(msgs) != 1 {
		return err
	}
	for t, value := range attrsOf(msgs[0][msg.Len():]) {
		if t == unix.IFLA_PROP_LIST {
			return n.applyChange(unix.RTM_DELLINKPROP, 0, msg, attr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, value))
		}
	}
	return nil
}

// findCard returns the network card with the given MAC address. Unlike [NS.FindMAC], findCard works in a pod, which can
// give this address to other links, even to lo. So findCard ignores lo. It returns the end of a veth pair only if there
// is no RealLink. Only tests use such an end as a card. The error is fs.ErrNotExist if there is no such card.
func (n *NS) findCard(mac string) (Link, error) {
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
		return Link{}, fmt.Errorf("%s: find the link with MAC address %s: %w", n.Name, mac, notExistError{unix.ENODEV})
	}
	return veth, nil
}

// MayBeCard reports whether a link can be a network card. It also accepts ends of veth pairs, which tests use as cards.
// An ipvlan slave has the MAC address of its card, but is not a card.
func (l Link) MayBeCard() bool {
	return l.Index != loopback && (l.Kind == RealLink || l.Kind == "veth")
}

// loopback is the index of lo in each namespace (LOOPBACK_IFINDEX of net/flow.h).
const loopback = 1
