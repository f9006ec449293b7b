// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// An IPVlan is a slave of the link Master, created in the namespace NS. It has the MAC address
// of its master, and addresses of its own.
type IPVlan struct {
	Name   string
	Master string       // in the namespace of the step
	NS     *NS          // of the slave; nil if the namespace is gone, and the slave with it
	Mode   string       // l2, l3 or l3s; "" is l2
	MTU    int          // 0: the slave always has the MTU of its master, and Check accepts any MTU
	Group  uint32       // links to be deleted together; 0 is the default group
	Down   bool         // leave the slave down: the caller changes something first, and then an Up sets the slave up
	Only   []netip.Addr // the only addresses of pods that Check accepts on the slave; nil: Check accepts any
	Fresh  bool         // the caller has seen that NS has no link of this name, so Add does not ask
}

// modes in the order of IPVLAN_MODE_*, see linux/if_link.h.
var modes = []string{"l2", "l3", "l3s"}

func modeName(m uint16) string {
	if int(m) < len(modes) {
		return modes[m]
	}
	return fmt.Sprint(m)
}

func (v IPVlan) String() string {
	c := command("ip link add").word(v.Name).option("link", v.Master)
	if v.NS != nil {
		c.option("netns", v.NS.Name)
	}
	return c.number("mtu", v.MTU).number("group", int(v.Group)).word("type ipvlan").option("mode", v.mode()).String()
}

func (v IPVlan) mode() string {
	if v.Mode == "" {
		return modes[0]
	}
	return v.Mode
}

// Add creates the slave in its namespace, under its name, and up, in one request.
//
// The request goes to the master's namespace and names the slave's namespace. So the kernel makes the link in its final
// namespace. Moving or renaming a link would take 10 ms or more, and all other changes of links would wait meanwhile
// (synchronize_rcu).
//
// Kernels before 6.15 look for a link of the same name in the namespace of the request, and find the node's own eth0.
// Such a kernel does not look for the name if the request has an index. So Add chooses an index that no kernel gives by
// itself.
func (v IPVlan) Add(n *NS) error {
	if v.NS == nil {
		return errGone
	}
	if err := checkName(v.Name); err != nil {
		return err
	}
	if !v.Fresh {
		if _, err := v.NS.linkByName(v.Name); err == nil {
			return fmt.Errorf("link %s: %w", v.Name, fs.ErrExist)
		}
	}
	var err error
	for i := range int32(slaves) {
		err = v.create(n, slaveIndex+i)
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) {
			break // EBUSY, EEXIST: a link in one of the two namespaces has the index
		}
	}
	if errors.Is(err, ErrUnanswered) {
		_ = v.NS.delLink(v.Name)
	}
	return err
}

// slaveIndex is the index of the first slave in a namespace. A namespace counts its links from one, and does not reach
// this index. The next slaves have the next indices. No instance has more ENIs than the number slaves. The index is the
// same in all pods, so pods can share BPF programs that depend on the index: see Splice.
const slaveIndex, slaves = 1 << 24, 64

// create asks the kernel to make the slave with an index.
func (v IPVlan) create(n *NS, index int32) error {
	mode := slices.Index(modes, v.mode())
	if mode < 0 {
		return fmt.Errorf("unknown ipvlan mode %q", v.Mode)
	}
	master, err := n.index(v.Master)
	if err != nil {
		return err
	}
	msg := linkMessage()
	msg.Index = index
	if !v.Down {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	attrs := []attribute{linkInfo("ipvlan", attr16(nl.IFLA_IPVLAN_MODE, uint16(mode))),
		attrString(unix.IFLA_IFNAME, v.Name),
		attr32(unix.IFLA_LINK, uint32(master)), attr32(unix.IFLA_NET_NS_FD, uint32(v.NS.fd))}
	if v.MTU > 0 {
		attrs = append(attrs, attr32(unix.IFLA_MTU, uint32(v.MTU)))
	}
	if v.Group != 0 {
		attrs = append(attrs, attr32(unix.IFLA_GROUP, v.Group))
	}
	err = n.change(unix.RTM_NEWLINK, addNew, msg, attrs...)
	if err == nil {
		v.made(n, int(index))
	}
	return err
}

// made makes the slave's namespace remember the slave. The slave has the MAC address of its master, and, if v.MTU is 0,
// also the MTU.
func (v IPVlan) made(n *NS, index int) {
	if v.NS.indices != nil {
		v.NS.indices[v.Name] = index
	}
	if m, known := n.seen[v.Master]; known && v.NS.seen != nil {
		v.NS.seen[v.Name] = Link{Name: v.Name, Index: index, Kind: "ipvlan", MAC: m.MAC, MTU: cmp.Or(v.MTU, m.MTU),
			Group: v.Group, Up: !v.Down,
			Mode: v.mode()}
	}
}

// Supported fails if the kernel has no ipvlan and no module for it. Supported asks for a slave without a master, of a
// mode that does not exist. A kernel with ipvlan loads the module and refuses the mode, before it makes anything.
func (IPVlan) Supported(n *NS) error {
	err := n.change(unix.RTM_NEWLINK, addNew, linkMessage(),
		linkInfo("ipvlan", attr16(nl.IFLA_IPVLAN_MODE, math.MaxUint16)),
		attrString(unix.IFLA_IFNAME, "ipvlan-probe"))
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return fmt.Errorf("ask for an ipvlan without a master: %w", cmp.Or(err, errors.ErrUnsupported))
}

// Del deletes the slave, and needs no Master for this. If the link of that name is not an ipvlan, the link is not ours,
// and stays.
func (v IPVlan) Del(*NS) error {
	if v.NS == nil {
		return errGone
	}
	l, err := v.NS.LinkByName(v.Name)
	if err != nil {
		return err
	}
	if l.Kind != "ipvlan" {
		return fmt.Errorf("%s is of type %s: %w", v.Name, l.Kind, fs.ErrNotExist)
	}
	return v.NS.delLink(v.Name)
}

// Check compares the slave with v. If Master is not "", Check also compares the slave's master.
func (v IPVlan) Check(n *NS) error {
	if v.NS == nil {
		return errGone
	}
	l, err := v.NS.LinkByName(v.Name)
	if err != nil {
		return err
	}
	var master Link
	if v.Master != "" {
		if master, err = n.LinkByName(v.Master); err != nil {
			return err
		}
	}
	switch {
	case l.Kind != "ipvlan":
		return differs(v.Name, l.Kind, "ipvlan")
	case v.Group != 0 && Foreign(l.Group, v.Group):
		return fmt.Errorf("%s belongs to another attachment of the pod", v.Name)
	case l.Peer != master.Index && v.Master != "":
		return fmt.Errorf("the master of %s is not %s", v.Name, v.Master)
	case l.Mode != v.mode():
		return differs("mode", l.Mode, v.mode())
	case v.MTU != 0 && l.MTU != v.MTU:
		return differs("mtu", l.MTU, v.MTU)
	case !l.Up && !v.Down:
		return errors.New("the link is down")
	}
	return v.checkAddrs()
}

// checkAddrs returns an error if the slave has an address that is not in Only. There are two reasons for such an
// address. Two ADDs of one attachment may run at the same time. If a DEL was between them, the ADDs have different
// addresses, and both add them to the slave. Or the pod itself has added the address of another pod, and takes that
// pod's packets.
func (v IPVlan) checkAddrs() error {
	if v.Only == nil {
		return nil
	}
	addrs, err := v.NS.Addrs(v.Name)
	for _, a := range addrs {
		if own := a.Prefix.Addr(); !own.IsLinkLocalUnicast() && !slices.Contains(v.Only, own) {
			return fmt.Errorf("%s has the address %s, too: another ADD, or the pod itself, has added it", v.Name, own)
		}
	}
	return err
}
