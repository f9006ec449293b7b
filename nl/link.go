// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
)

// A Link is a network interface as the kernel describes it.
type Link struct {
	Index int
	Name  string
	Kind  string // "veth", "ipvlan", "ipip", "device" for lo and network cards
	MAC   string
	MTU   int
	MTU6  int // of IPv6, see the type MTU6; 0 without IPv6
	Up    bool
	Alias string
	Group uint32
	Peer  int    // the index of the other end or of the master, maybe in another namespace
	Mode  string // of an ipvlan: l2, l3 or l3s

	props  []byte // the attributes with the alternative names
	tunnel tunnel // of a tunnel: its address and its port
	peerNS uint32 // 1 + the ID of the namespace that has the link Peer; 0 if the link's own namespace has it
}

// Unhooked reports whether the packets that arrive by the link bypass tc, XDP and the hooks of netfilter of the link's
// namespace. An ipvlan in mode l3s is such a link: the kernel passes its packets through the hooks of the master's
// namespace instead (ipvlan_l3_rcv).
func (l Link) Unhooked() bool { return l.Kind == "ipvlan" && l.Mode == modes[2] }

// Names returns the name of the link, and then its alternative names (see altname in ip-link(8)). The kernel finds the
// link by each of these names, but netfilter, rules and /proc/sys accept only the first name.
func (l Link) Names() []string {
	all := []string{l.Name}
	for typ, value := range attrsOf(l.props) {
		if typ == unix.IFLA_ALT_IFNAME {
			all = append(all, unix.ByteSliceToString(value))
		}
	}
	return all
}

// RealLink is the Kind of lo and of network cards, which cannot be deleted.
const RealLink = "device"

// String is the command of ip(8) that adds the link, without its master or its other end.
func (l Link) String() string {
	return command("ip link add").word(l.Name).number("mtu", l.MTU).number("group", int(l.Group)).
		option("type", l.Kind).option("mode", l.Mode).String()
}

// Links lists the links of the namespace, in the kernel's order.
func (n *NS) Links() ([]Link, error) { return n.links(n.request) }

// exactLinks is Links for callers who must know that no link is missing.
func (n *NS) exactLinks() ([]Link, error) { return n.links(n.exact) }

// links lists the links. request is the method that asks the kernel.
func (n *NS) links(request requester) ([]Link, error) {
	msgs, err := request(unix.NETLINK_ROUTE, unix.RTM_GETLINK, unix.NLM_F_DUMP, unix.RTM_NEWLINK, linkMessage(),
		skipStats())
	if err != nil {
		return nil, fmt.Errorf("%s: list links: %w", n.Name, err)
	}
	links := make([]Link, 0, len(msgs))
	for _, m := range msgs {
		links = append(links, parseLink(m))
	}
	return links, nil
}

// LinkByName returns the link of that name. The error is fs.ErrNotExist
// if there is none.
func (n *NS) LinkByName(name string) (Link, error) {
	m, err := n.linkByName(name)
	if err != nil {
		return Link{}, fmt.Errorf("link %s: %w", name, err)
	}
	l := parseLink(m)
	if n.indices != nil {
		n.indices[name] = l.Index
	}
	if n.seen != nil {
		n.seen[name] = l
	}
	return l, nil
}

// SeenLink is LinkByName. But if a context keeps the namespace (see [KeepOpen]), SeenLink may return the link as this
// command found or made it earlier. So use SeenLink only for properties that no program changes in the milliseconds of
// a command: the MAC address, the MTU and the group.
func (n *NS) SeenLink(name string) (Link, error) {
	if l, seen := n.seen[name]; seen {
		return l, nil
	}
	return n.LinkByName(name)
}

// linkByName returns the kernel's message about one link, without the statistics. The error is fs.ErrNotExist if there
// is no such link, also for an invalid name.
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

// HasLink reports whether the namespace has a link of an index. HasLink returns false only if the kernel answers that
// there is no such link. After any other error, the link may exist.
func (n *NS) HasLink(index int) bool {
	_, err := n.LinkByIndex(index)
	return !errors.Is(err, fs.ErrNotExist)
}

// LinkByIndex returns the link of that index. The error is fs.ErrNotExist if there is none.
func (n *NS) LinkByIndex(index int) (Link, error) {
	msg := linkMessage()
	msg.Index = int32(index)
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, msg, skipStats())
	if err == nil && len(msgs) != 1 {
		err = errors.New("the kernel did not answer with one link")
	}
	if err != nil {
		return Link{}, fmt.Errorf("link %d: %w", index, err)
	}
	return parseLink(msgs[0]), nil
}

// index returns the index of a link. Most messages need no other property of the link.
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

// checkName returns an error for a name that the kernel would refuse. It also refuses the empty name, because a message
// with this name would be about other links.
func checkName(name string) error {
	if fault := ifname.Fault(name); fault != "" {
		return fmt.Errorf("link name %q %s", name, fault)
	}
	return nil
}

// setLink sets a link up, with its MTU and alias if they are given, and with further attributes.
func (n *NS) setLink(name string, mtu int, alias string, more ...attribute) error {
	if err := checkName(name); err != nil {
		return err
	}
	delete(n.seen, name) // the index of the link does not change
	msg := linkMessage()
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	attrs := []attribute{attrString(unix.IFLA_IFNAME, name)}
	if mtu > 0 {
		attrs = append(attrs, attr32(unix.IFLA_MTU, uint32(mtu)))
	}
	if alias != "" {
		attrs = append(attrs, attr(unix.IFLA_IFALIAS, []byte(alias)))
	}
	return n.change(unix.RTM_SETLINK, 0, msg, append(attrs, more...)...)
}

// SetDown sets a link down. The kernel then removes the link's routes.
func (n *NS) SetDown(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	delete(n.seen, name)
	msg := linkMessage()
	msg.Change = unix.IFF_UP
	if err := n.change(unix.RTM_SETLINK, 0, msg, attrString(unix.IFLA_IFNAME, name)); err != nil {
		return fmt.Errorf("%s: ip link set %s down: %w", n.Name, name, err)
	}
	return nil
}

// delLink deletes a link by its name. If n remembers the link's index, delLink deletes the link by the index. So a link
// of the same name that another process has made meanwhile stays.
func (n *NS) delLink(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	n.lost = true
	i, known := n.indices[name]
	n.renew(name)
	msg := linkMessage()
	if known {
		msg.Index = int32(i)
		return n.change(unix.RTM_DELLINK, 0, msg)
	}
	return n.change(unix.RTM_DELLINK, 0, msg, attrString(unix.IFLA_IFNAME, name))
}

// renew makes n forget the index and the properties of a link.
func (n *NS) renew(name string) {
	delete(n.indices, name)
	delete(n.seen, name)
}

func linkMessage() *nl.IfInfomsg { return nl.NewIfInfomsg(unix.AF_UNSPEC) }

// skipStats makes the kernel leave out the counters, which are half of an answer: RTEXT_FILTER_SKIP_STATS of
// linux/rtnetlink.h.
func skipStats() attribute { return attr32(unix.IFLA_EXT_MASK, 1<<3) }

// linkInfo returns the attribute for the kind of a new link and its options.
func linkInfo(kind string, options ...attribute) attribute {
	info := []attribute{attr(nl.IFLA_INFO_KIND, []byte(kind))}
	if len(options) > 0 {
		info = append(info, nest(nl.IFLA_INFO_DATA, options...))
	}
	return nest(unix.IFLA_LINKINFO, info...)
}
