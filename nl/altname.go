// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// An AltName is an alternative name of a link (see altname in ip-link(8)). Alternative names need Linux 5.5.
type AltName struct {
	Dev  string
	MAC  string // the link's MAC address: if a link has the name Dev and another MAC address, it is another link
	Name string
}

func (a AltName) String() string {
	return command("ip link property add").option("dev", a.Dev).option("altname", a.Name).String()
}

func (a AltName) Add(n *NS) error { return a.sendMessage(n, unix.RTM_NEWLINKPROP, addNew) }

func (a AltName) Del(n *NS) error { return a.sendMessage(n, unix.RTM_DELLINKPROP, 0) }

func (a AltName) sendMessage(n *NS, typ, flags int) error {
	if err := checkName(a.Name); err != nil {
		return err
	}
	l, err := a.link(n)
	if err != nil {
		return err
	}
	delete(n.seen, a.Dev)
	msg := linkMessage()
	msg.Index = int32(l.Index)
	return n.applyChange(typ, flags, msg,
		nest(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, attrString(unix.IFLA_ALT_IFNAME, a.Name)))
}

func (a AltName) Check(n *NS) error {
	l, err := a.link(n)
	if err == nil && !slices.Contains(l.Names()[1:], a.Name) {
		err = fmt.Errorf("%s: %w", a.missingText(), fs.ErrNotExist)
	}
	return err
}

func (a AltName) missingText() string { return a.Dev + " does not have the alternative name " + a.Name }

func (a AltName) link(n *NS) (Link, error) {
	l, err := n.LinkByName(a.Dev)
	if err == nil && l.MAC != a.MAC {
		err = notExistError{unix.ENODEV}
	}
	return l, err
}
