// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Link is what the kernel says of a network interface.
type Link struct {
	Index int
	Name  string
	Kind  string // "veth", "ipvlan", "device" for a real one
	MAC   string
	MTU   int
	Up    bool
	Alias string
	Group uint32
	Peer  int    // the index of the other end or of the master, maybe in another namespace
	Mode  string // of an ipvlan: l2, l3 or l3s

	peerNS uint32 // 1 + the ID of the namespace that Peer is in; 0 if it is in this one
}

// realLink is the Kind of lo and of network cards, which cannot be deleted.
const realLink = "device"

// String is the link as ip(8) would add it, without what it is attached to.
func (l Link) String() string {
	return command("ip link add").word(l.Name).number("mtu", l.MTU).number("group", int(l.Group)).
		option("type", l.Kind).option("mode", l.Mode).String()
}

// Links lists the links of the namespace by index.
func (n *NS) Links() ([]Link, error) {
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETLINK, unix.NLM_F_DUMP, unix.RTM_NEWLINK, linkMessage(), skipStats())
	if err != nil {
		return nil, fmt.Errorf("%s: list links: %w", n.Name, err)
	}
	links := make([]Link, 0, len(msgs))
	for _, m := range msgs {
		l, err := parseLink(m)
		if err != nil {
			return nil, fmt.Errorf("%s: list links: %w", n.Name, err)
		}
		links = append(links, l)
	}
	return links, nil
}

// InGroup is the name of the first of some links, by their names, that is in such a group, or "". (The order in which
// kernels list links differs.)
func InGroup(links []Link, such func(group uint32) bool) (first string) {
	for _, l := range links {
		if such(l.Group) && (first == "" || l.Name < first) {
			first = l.Name
		}
	}
	return first
}

// LinkByName returns the link of that name. The error answers to fs.ErrNotExist
// if there is none.
func (n *NS) LinkByName(name string) (Link, error) {
	m, err := n.linkByName(name)
	if err != nil {
		return Link{}, fmt.Errorf("link %s: %w", name, err)
	}
	return parseLink(m)
}

// linkByName asks for one link without its statistics. There is none of a name that cannot be.
func (n *NS) linkByName(name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, absence{err}
	}
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK,
		linkMessage(), skipStats(), attrString(unix.IFLA_IFNAME, name))
	if err == nil && len(msgs) != 1 {
		err = absence{unix.ENODEV}
	}
	if err != nil {
		return nil, err
	}
	return msgs[0], nil
}

// index returns the index of a link, all that most messages need.
func (n *NS) index(name string) (int, error) {
	if i, known := n.indices[name]; known {
		return i, nil
	}
	m, err := n.linkByName(name)
	if err != nil {
		return 0, fmt.Errorf("link %s: %w", name, err)
	}
	i := int(nl.DeserializeIfInfomsg(m).Index)
	if n.indices != nil {
		n.indices[name] = i
	}
	return i, nil
}

// checkName keeps a name that the kernel would refuse, or take for another
// request, away from it. IFNAMSIZ is 16 with the final zero byte.
func checkName(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return fmt.Errorf("%q is no link name: 1 to %d bytes", name, unix.IFNAMSIZ-1)
	}
	return nil
}

// Up is the state of a link that is up, with an MTU if that is not 0. Deleting
// it does nothing: a link that was set up stays up.
type Up struct {
	Dev string
	MTU int
}

func (u Up) String() string {
	return command("ip link set").word(u.Dev).number("mtu", u.MTU).word("up").String()
}

// Add sets the link up.
func (u Up) Add(n *NS) error {
	if u.Check(n) == nil {
		return errSame
	}
	return n.setLink(u.Dev, u.MTU, "")
}

// Del does nothing.
func (u Up) Del(*NS) error { return nil }

// Check reports a link that is down or has another MTU.
func (u Up) Check(n *NS) error {
	l, err := n.LinkByName(u.Dev)
	switch {
	case err != nil:
		return err
	case !l.Up:
		return errors.New("the link is down")
	case u.MTU > 0 && l.MTU != u.MTU:
		return differs("mtu", l.MTU, u.MTU)
	}
	return nil
}

// setLink sets a link up, with its MTU and alias if they are given, and what more there is.
func (n *NS) setLink(name string, mtu int, alias string, more ...nl.NetlinkRequestData) error {
	if err := checkName(name); err != nil {
		return err
	}
	msg := linkMessage()
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	data := []nl.NetlinkRequestData{msg, attrString(unix.IFLA_IFNAME, name)}
	if mtu > 0 {
		data = append(data, attr32(unix.IFLA_MTU, uint32(mtu)))
	}
	if alias != "" {
		data = append(data, attr(unix.IFLA_IFALIAS, []byte(alias)))
	}
	return n.change(unix.RTM_SETLINK, 0, append(data, more...)...)
}

// delLink deletes a link by its name.
func (n *NS) delLink(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	delete(n.indices, name)
	return n.change(unix.RTM_DELLINK, 0, linkMessage(), attrString(unix.IFLA_IFNAME, name))
}

// DelGroup deletes all links of a group, and what they are one end of. The error answers
// to fs.ErrNotExist if there is none. A link that cannot be deleted, as lo or a network
// card, it takes out of the group: because of it the kernel would leave the others, too.
func (n *NS) DelGroup(group uint32) error {
	if group == 0 { // of all links that are in no other
		return errors.New("group 0 is everybody's")
	}
	clear(n.indices)
	del := func() error {
		return n.change(unix.RTM_DELLINK, 0, linkMessage(), attr32(unix.IFLA_GROUP, group))
	}
	err := del()
	if errors.Is(err, unix.EOPNOTSUPP) {
		if err = n.ungroup(group); err == nil {
			err = del()
		}
	}
	if err != nil {
		return fmt.Errorf("%s: ip link del group %d: %w", n.Name, group, err)
	}
	return nil
}

// ungroup takes those links out of a group that nobody can delete. To delete the others one
// by one instead would take 10 ms or more for each, and a pod may have put thousands there.
func (n *NS) ungroup(group uint32) error {
	links, err := n.Links()
	for _, l := range links {
		if l.Group != group || l.Kind != realLink {
			continue
		}
		msg := linkMessage()
		msg.Index = int32(l.Index)
		err = errors.Join(err, n.change(unix.RTM_SETLINK, 0, msg, attr32(unix.IFLA_GROUP, 0)))
	}
	return err
}

func linkMessage() *nl.IfInfomsg { return nl.NewIfInfomsg(unix.AF_UNSPEC) }

// skipStats leaves out the counters, half of an answer: RTEXT_FILTER_SKIP_STATS
// of linux/rtnetlink.h.
func skipStats() *nl.RtAttr { return attr32(unix.IFLA_EXT_MASK, 1<<3) }
