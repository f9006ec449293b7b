// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// MTU6 is the state of a link on which IPv6 sends no larger packets than the link takes. IPv6 has an MTU of its own,
// which is a sysctl of the link. If the MTU of an ENI becomes smaller, its slaves get the new MTU without a message
// (ipvlan_adjust_mtu). IPv6 on the slaves keeps the old MTU. Packets larger than the new MTU are then lost, and the
// sender gets no ICMPv6 error.
type MTU6 struct{ Dev string }

func (m MTU6) String() string {
	return fmt.Sprintf("sysctl -w net.ipv6.conf.%s.mtu=$(cat /sys/class/net/%[1]s/mtu)", m.Dev)
}

// Add gives IPv6 the MTU of the link.
func (m MTU6) Add(n *NS) error {
	l, err := n.LinkByName(m.Dev)
	if err != nil {
		return err
	}
	if l.fault6() == nil {
		return errSame
	}
	return Sysctl{Key: "net/ipv6/conf/" + m.Dev + "/mtu", Value: strconv.Itoa(l.MTU)}.Add(n)
}

// Del does nothing.
func (m MTU6) Del(*NS) error { return nil }

// Check returns an error if the MTU of IPv6 is larger than the MTU of the link. If the MTU of IPv6 is smaller, no
// packets are lost.
func (m MTU6) Check(n *NS) error {
	l, err := n.LinkByName(m.Dev)
	if err != nil {
		return err
	}
	return l.fault6()
}

// fault6 returns an error if the MTU of IPv6 is larger than the MTU of the link.
func (l Link) fault6() error {
	if l.MTU6 <= l.MTU {
		return nil
	}
	return fmt.Errorf(
		"its IPv6 sends packets of up to %d bytes, and the link takes at most %d bytes: larger packets are lost "+
			"without an error",
		l.MTU6, l.MTU)
}

// mtu6 reads the MTU of IPv6, the third of the link's parameters (DEVCONF_MTU6 of linux/ipv6.h). mtu6 returns 0 if the
// link has no IPv6.
func mtu6(families []byte) int {
	const conf, mtu = 2 /* IFLA_INET6_CONF */, 2
	if values := inside(families, unix.AF_INET6, conf); len(values) >= 4*(mtu+1) {
		return int(binary.NativeEndian.Uint32(values[4*mtu:]))
	}
	return 0
}
