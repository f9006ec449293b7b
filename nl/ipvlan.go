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

// An IPVlan is an ipvlan slave in the namespace NS. It has the MAC address of its master, but IP addresses of its own.
type IPVlan struct {
	Name   string
	Master string       // the name of the master, a link in the namespace of the Step
	NS     *NS          // the namespace of the slave; nil: the namespace and the slave are gone
	Mode   string       // l2, l3 or l3s; "" is l2
	MTU    int          // 0: the slave follows the MTU of its master, and Check accepts any MTU
	Group  uint32       // see DelGroup; 0 is the default group
	Down   bool         // Add leaves the slave down: a later Up in the Wiring brings it up
	Only   []netip.Addr // the addresses that Check accepts, besides link-local ones; nil: all addresses
	Fresh  bool         // the caller has made sure that NS has no link of this name, so Add does not look for one
}

// ipvlanModes has the names of the modes. Their order is that of the constants IPVLAN_MODE_* in linux/if_link.h.
var ipvlanModes = []string{"l2", "l3", "l3s"}

func modeName(m uint16) string {
	if int(m) < len(ipvlanModes) {
		return ipvlanModes[m]
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
		return ipvlanModes[0]
	}
	return v.Mode
}

// Add creates the slave in its own namespace by one request. This request also names the slave, and brings it up.
//
// The request goes to the master's namespace, and names the slave's namespace. To move or rename the slave later would
// take 10 ms or more, and all other changes of links would wait (synchronize_rcu).
//
// Kernels before 6.15 look for the name in the master's namespace. So they would refuse the name eth0, because the node
// has a link eth0. But these kernels do not look for the name when the request has an index. So Add chooses an index
// that no kernel chooses by itself.
func (v IPVlan) Add(n *NS) error {
	if v.NS == nil {
		return errGone
	}
	if err := checkName(v.Name); err != nil {
		return err
	}
	if !v.Fresh {
		if _, err := v.NS.rawLinkByName(v.Name); err == nil {
			return fmt.Errorf("link %s: %w", v.Name, fs.ErrExist)
		}
	}
	var err error
	for i := range int32(mostSlaves) {
		err = v.create(n, firstSlaveIndex+i)
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) {
			break // EBUSY, EEXIST: a link in one of the two namespaces has the index
		}
	}
	if errors.Is(err, ErrUnanswered) {
		_ = v.NS.delLink(v.Name)
	}
	return err
}

// firstSlaveIndex is the index of the first slave in each pod, and the next slaves have the next indices. The kernel
// itself chooses indices from 1 upwards, and does not reach firstSlaveIndex. firstSlaveIndex is the same in all pods,
// so pods can share BPF programs that depend on this index: see Splice. No instance has more than mostSlaves ENIs.
const firstSlaveIndex, mostSlaves = 1 << 24, 64

func (v IPVlan) create(n *NS, index int32) error {
	mode := slices.Index(ipvlanModes, v.mode())
	if mode < 0 {
		return fmt.Errorf("unknown ipvlan mode %q", v.Mode)
	}
	master, err := n.linkIndex(v.Master)
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
	err = n.applyChange(unix.RTM_NEWLINK, addNew, msg, attrs...)
	if err == nil {
		v.rememberSlave(n, int(index))
	}
	return err
}

// rememberSlave makes v.NS remember the new slave, so no method asks the kernel for it.
func (v IPVlan) rememberSlave(n *NS, index int) {
	if v.NS.indices != nil {
		v.NS.indices[v.Name] = index
	}
	if m, known := n.seen[v.Master]; known && v.NS.seen != nil {
		v.NS.seen[v.Name] = Link{Name: v.Name, Index: index, Kind: "ipvlan", MAC: m.MAC, MTU: cmp.Or(v.MTU, m.MTU),
			Group: v.Group, Up: !v.Down,
			Mode: v.mode()}
	}
}

// Supported returns an error if the kernel has ipvlan neither built in nor as a module. It asks for a slave without a
// master and with a mode that does not exist, so no link is created. A kernel with ipvlan loads the module if
// necessary, and refuses the mode. Any other kernel returns another error.
func (IPVlan) Supported(n *NS) error {
	err := n.applyChange(unix.RTM_NEWLINK, addNew, linkMessage(),
		linkInfo("ipvlan", attr16(nl.IFLA_IPVLAN_MODE, math.MaxUint16)),
		attrString(unix.IFLA_IFNAME, "ipvlan-probe"))
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return fmt.Errorf("ask for an ipvlan without a master: %w", cmp.Or(err, errors.ErrUnsupported))
}

// Del deletes the slave, even if Master is "". If the link with this name is of another kind, the link is not ours, and
// stays.
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

// Check returns an error if the slave differs from the IPVlan v. If Master is "", Check accepts any master.
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
		return mismatchError(v.Name, l.Kind, "ipvlan")
	case v.Group != 0 && Foreign(l.Group, v.Group):
		return fmt.Errorf("%s belongs to another attachment of the pod", v.Name)
	case l.Peer != master.Index && v.Master != "":
		return fmt.Errorf("the master of %s is not %s", v.Name, v.Master)
	case l.Mode != v.mode():
		return mismatchError("mode", l.Mode, v.mode())
	case v.MTU != 0 && l.MTU != v.MTU:
		return mismatchError("mtu", l.MTU, v.MTU)
	case !l.Up && !v.Down:
		return errors.New("the link is down")
	}
	return v.checkAddrs()
}

// checkAddrs returns an error if the slave has an address that is not in Only. The pod itself may have added another
// pod's address, to get the packets of the other pod. Or two ADDs and a DEL of one attachment ran at the same time.
// After the DEL had ended the lease of the first ADD, the second ADD added another address.
func (v IPVlan) checkAddrs() error {
	if v.Only == nil {
		return nil
	}
	addrs, err := v.NS.Addrs(v.Name)
	for _, a := range addrs {
		if own := a.Prefix.Addr(); !own.IsLinkLocalUnicast() && !slices.Contains(v.Only, own) {
			return fmt.Errorf("%s also has the address %s, which another ADD or the pod itself has added", v.Name, own)
		}
	}
	return err
}
