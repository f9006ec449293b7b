// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrShared reports that other links send and receive by a link. The other links are slaves of ipvlan, maybe in the
// namespaces of pods, or a bridge or bond that has the link.
var ErrShared = errors.New("other links use this link: slaves of ipvlan, maybe in pods, or a bridge; end these pods " +
	"first")

// Unshared returns [ErrShared] if a link has slaves. If a link moves to another namespace, its slaves stay its slaves.
// All their packets then go through that namespace (ipvlan_device_event). The kernel lists slaves only in their own
// namespaces, and a namespace that is ending is in no list.
//
// So Unshared asks the kernel for a macvlan link on the link, with an option that the mode does not have. The kernel
// always refuses this request. If another kind of link receives the packets of the link, the error is EBUSY
// (macvlan_port_create, since Linux 4.5). Otherwise the error is EINVAL, because of the option.
//
// Unshared does not find a link of the kind macvlan or vlan in another namespace. [NS.Slaves] of that namespace finds
// it.
func (n *NS) Unshared(l Link) error {
	above, err := n.above(l)
	if err != nil {
		return err
	}
	if len(above) > 0 {
		return fmt.Errorf("link %s, on which %s was made: %w", l.Name, above[0].Name, ErrShared)
	}
	info := linkInfo("macvlan", attr32(nl.IFLA_MACVLAN_MODE, nl.MACVLAN_MODE_PRIVATE),
		attr32(nl.IFLA_MACVLAN_MACADDR_MODE, nl.MACVLAN_MACADDR_FLUSH)) // an option of only MACVLAN_MODE_SOURCE
	err = n.change(unix.RTM_NEWLINK, addNew, linkMessage(), info,
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
