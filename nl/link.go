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
	Kind  string // "veth", "ipvlan" and so on, as in ip-link(8); RealLink for lo and network cards
	MAC   string
	MTU   int
	MTU6  int // the MTU of IPv6, see the type MTU6; 0 if the link has no IPv6
	Up    bool
	Alias string
	Group uint32
	Peer  int    // the index of a pair's other end or of a slave's master, perhaps in another namespace
	Mode  string // the mode of an ipvlan link: l2, l3 or l3s
	// Forwards reports whether the kernel forwards IPv4 packets that arrive through the link.
	Forwards bool

	props  []byte // the alternative names, as a list of attributes
	tunnel tunnel // only for a tunnel
	peerNS uint32 // 1 + the ID of the namespace of the link Peer; 0 if Peer is in the link's own namespace
}

// Unhooked reports whether packets that arrive through the link bypass tc, XDP and the netfilter hooks of the link's
// namespace. Packets of ipvlan links in mode l3s bypass these hooks: the kernel passes the packets through the hooks of
// the master's namespace (ipvlan_l3_rcv).
func (l Link) Unhooked() bool { return l.Kind == "ipvlan" && l.Mode == ipvlanModes[2] }

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

// RealLink is the Kind of lo and of a network card. The kernel does not let a process delete these links.
const RealLink = "device"

// String returns the command of ip(8) that would add the link. The command names neither the master nor the other end.
func (l Link) String() string {
	return command("ip link add").word(l.Name).number("mtu", l.MTU).number("group", int(l.Group)).
		option("type", l.Kind).option("mode", l.Mode).String()
}

// Links lists the links of the namespace, in the kernel's order.
func (n *NS) Links() ([]Link, error) { return n.listLinks(n.sendRequest) }

// exactLinks is like Links, but never returns an incomplete list. If links change while the kernel lists them,
// exactLinks tries again, and fails after ten tries.
func (n *NS) exactLinks() ([]Link, error) { return n.listLinks(n.sendExact) }

func (n *NS) listLinks(send sender) ([]Link, error) {
	msgs, err := send(unix.NETLINK_ROUTE, unix.RTM_GETLINK, unix.NLM_F_DUMP, unix.RTM_NEWLINK, linkMessage(),
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

// LinkByName returns the link with the given name or alternative name. The error is fs.ErrNotExist if there is no such
// link.
func (n *NS) LinkByName(name string) (Link, error) {
	m, err := n.rawLinkByName(name)
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

// SeenLink is like LinkByName, except if a context keeps the namespace open (see [KeepOpen]). Then SeenLink may return
// a state that this process has read earlier. A process with such a context answers only one command, so the state is
// only some milliseconds old. Use SeenLink only for properties that no program changes in so short a time: the MAC
// address, the MTU, the group and Forwards.
func (n *NS) SeenLink(name string) (Link, error) {
	if l, seen := n.seen[name]; seen {
		return l, nil
	}
	return n.LinkByName(name)
}

// rawLinkByName returns the kernel's message about a link, without the statistics. The error is fs.ErrNotExist if there
// is no such link, or if the name is invalid.
func (n *NS) rawLinkByName(name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, notExistError{err}
	}
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK,
		linkMessage(), skipStats(), attrString(unix.IFLA_IFNAME, name))
	if err == nil && len(msgs) != 1 {
		err = notExistError{unix.ENODEV}
	}
	if err != nil {
		return nil, err
	}
	return msgs[0], nil
}

// HasLink reports whether the namespace has a link with the given index. It returns false only if the kernel reports
// that there is no such link. After any other error, it returns true.
func (n *NS) HasLink(index int) bool {
	_, err := n.LinkByIndex(index)
	return !errors.Is(err, fs.ErrNotExist)
}

// LinkByIndex returns the link with the given index. The error is fs.ErrNotExist if there is none.
func (n *NS) LinkByIndex(index int) (Link, error) {
	msg := linkMessage()
	msg.Index = int32(index)
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, msg, skipStats())
	if err == nil && len(msgs) != 1 {
		err = errors.New("the kernel did not answer with one link")
	}
	if err != nil {
		return Link{}, fmt.Errorf("link %d: %w", index, err)
	}
	return parseLink(msgs[0]), nil
}

// linkIndex returns the index of a link. If n remembers the index, linkIndex does not ask the kernel.
func (n *NS) linkIndex(name string) (int, error) {
	if i, known := n.indices[name]; known {
		return i, nil
	}
	m, err := n.rawLinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("link %s: %w", name, err)
	}
	i := int(nl.DeserializeIfInfomsg(m).Index)
	if n.indices != nil {
		n.indices[name] = i
	}
	return i, nil
}

// checkName returns an error for a link name that the kernel would refuse. It also returns an error for the empty name,
// because the kernel could apply a request without a name to any link.
func checkName(name string) error {
	if fault := ifname.Fault(name); fault != "" {
		return fmt.Errorf("link name %q %s", name, fault)
	}
	return nil
}

// setLink brings a link up, and sets its MTU, its alias and further properties. If mtu is 0, the MTU stays. If alias is
// empty, the alias stays.
func (n *NS) setLink(name string, mtu int, alias string, more ...attribute) error {
	if err := checkName(name); err != nil {
		return err
	}
	delete(n.seen, name) // but keep the link's index, which does not change
	msg := linkMessage()
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	attrs := []attribute{attrString(unix.IFLA_IFNAME, name)}
	if mtu > 0 {
		attrs = append(attrs, attr32(unix.IFLA_MTU, uint32(mtu)))
	}
	if alias != "" {
		attrs = append(attrs, attr(unix.IFLA_IFALIAS, []byte(alias)))
	}
	return n.applyChange(unix.RTM_SETLINK, 0, msg, append(attrs, more...)...)
}

// SetDown brings a link down. The kernel then removes the link's routes.
func (n *NS) SetDown(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	delete(n.seen, name)
	msg := linkMessage()
	msg.Change = unix.IFF_UP
	if err := n.applyChange(unix.RTM_SETLINK, 0, msg, attrString(unix.IFLA_IFNAME, name)); err != nil {
		return fmt.Errorf("%s: ip link set %s down: %w", n.Name, name, err)
	}
	return nil
}

// delLink deletes a link, by its index if n remembers the index. So if another process has replaced the link, the new
// link of the same name stays.
func (n *NS) delLink(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	n.linkDeleted = true
	i, known := n.indices[name]
	n.forgetLink(name)
	msg := linkMessage()
	if known {
		msg.Index = int32(i)
		return n.applyChange(unix.RTM_DELLINK, 0, msg)
	}
	return n.applyChange(unix.RTM_DELLINK, 0, msg, attrString(unix.IFLA_IFNAME, name))
}

func (n *NS) forgetLink(name string) {
	delete(n.indices, name)
	delete(n.seen, name)
}

func linkMessage() *nl.IfInfomsg { return nl.NewIfInfomsg(unix.AF_UNSPEC) }

// skipStats returns an attribute that makes the kernel leave out the statistics (RTEXT_FILTER_SKIP_STATS of
// linux/rtnetlink.h). The statistics are half of each answer.
func skipStats() attribute { return attr32(unix.IFLA_EXT_MASK, 1<<3) }

// linkInfo returns the attribute that gives a new link its kind and the options of this kind.
func linkInfo(kind string, options ...attribute) attribute {
	info := []attribute{attr(nl.IFLA_INFO_KIND, []byte(kind))}
	if len(options) > 0 {
		info = append(info, nest(nl.IFLA_INFO_DATA, options...))
	}
	return nest(unix.IFLA_LINKINFO, info...)
}
