// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrShared reports that other links use a link. The other links are ipvlan slaves, perhaps in the namespaces of pods,
// or a bridge or bond with the link as a port.
var ErrShared = errors.New("other links use this link: slaves of ipvlan, maybe in pods, or a bridge; end these pods " +
	"first")

// Unshared returns [ErrShared] if other links use a link. If a link with ipvlan slaves moves to another namespace, the
// link stays the master of the slaves. All packets of the slaves then go through that namespace (ipvlan_device_event).
// To list the slaves is not enough: each namespace lists only its own links, and a namespace that is ending cannot be
// found.
//
// So Unshared asks the kernel for a macvlan link on top of the link. The request has an option that does not fit the
// mode of the macvlan link, so the kernel always refuses the request. If an ipvlan, bridge or bond uses the link, the
// error is EBUSY (macvlan_port_create, since Linux 4.5). If no ipvlan, bridge or bond uses it, the error is EINVAL,
// because of the option.
//
// Unshared does not find macvlan and VLAN links in other namespaces. To find these links, call [NS.Slaves] for the
// other namespaces.
func (n *NS) Unshared(l Link) error {
	above, err := n.linksAbove(l)
	if err != nil {
		return err
	}
	if len(above) > 0 {
		return fmt.Errorf("link %s, on which %s was made: %w", l.Name, above[0].Name, ErrShared)
	}
	info := linkInfo("macvlan", attr32(nl.IFLA_MACVLAN_MODE, nl.MACVLAN_MODE_PRIVATE),
		attr32(nl.IFLA_MACVLAN_MACADDR_MODE, nl.MACVLAN_MACADDR_FLUSH)) // only MACVLAN_MODE_SOURCE has this option
	err = n.applyChange(unix.RTM_NEWLINK, addNew, linkMessage(), info,
		attrString(unix.IFLA_IFNAME, "macvlan-probe"), attr32(unix.IFLA_LINK, uint32(l.Index)))
	switch {
	case errors.Is(err, unix.EINVAL):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("link %s: %w", l.Name, ErrShared)
	case err == nil:
		return errors.Join(fmt.Errorf("link %s: the kernel did not answer as expected whether other links use this "+
			"link",
			l.Name),
			n.delLink("macvlan-probe"))
	}
	return fmt.Errorf("ask whether other links use %s, which needs macvlan (modprobe macvlan): %w", l.Name, err)
}
