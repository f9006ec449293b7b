// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrShared reports that other links use a link: the link has slaves (perhaps in pods) or VLANs, or is a port of a
// bridge or bond.
var ErrShared = errors.New("other links use this link")

// Unshared returns [ErrShared] if other links use a link. If a link with ipvlan slaves moves, it stays their master,
// and all their packets go through its new namespace (ipvlan_device_event). A list of slaves is not enough: each
// namespace lists only its own links, and a namespace that is ending cannot be found.
//
// So Unshared asks the kernel for a macvlan link on top of the link, with an option that makes the kernel refuse in any
// case. If an ipvlan, bridge or bond uses the link, the error is EBUSY (macvlan_port_create, since Linux 4.5).
// Otherwise it is EINVAL.
//
// Unshared does not find macvlan and VLAN links in other namespaces: for these, call [NS.Slaves] of the other
// namespaces.
func (n *NS) Unshared(l Link) error {
	above, err := n.linksAbove(l)
	if err != nil {
		return err
	}
	if len(above) > 0 {
		return fmt.Errorf("link %s: %w: delete %s", l.Name, ErrShared, above[0].Name)
	}
	info := linkInfo("macvlan", attr32(nl.IFLA_MACVLAN_MODE, nl.MACVLAN_MODE_PRIVATE),
		attr32(nl.IFLA_MACVLAN_MACADDR_MODE, nl.MACVLAN_MACADDR_FLUSH)) // only MACVLAN_MODE_SOURCE has this option
	err = n.applyChange(unix.RTM_NEWLINK, addNew, linkMessage(), info,
		attrString(unix.IFLA_IFNAME, "macvlan-probe"), attr32(unix.IFLA_LINK, uint32(l.Index)))
	switch {
	case errors.Is(err, unix.EINVAL):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("link %s: %w: a bridge, a bond or ipvlan slaves. Delete the bridge or bond, or end the pods "+
			"that have the slaves", l.Name, ErrShared)
	case err == nil:
		return errors.Join(fmt.Errorf("link %s: the kernel did not report whether other links use this link", l.Name),
			n.delLink("macvlan-probe"))
	}
	return fmt.Errorf("find out whether other links use %s (needs macvlan: modprobe macvlan): %w", l.Name, err)
}
