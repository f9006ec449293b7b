// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// An MTU6 ensures that the IPv6 MTU of a link is not larger than the link's MTU. The IPv6 MTU is a separate sysctl of
// each link. If the MTU of an ENI becomes smaller, the kernel also lowers the MTU of the ENI's slaves, but not their
// IPv6 MTU (ipvlan_adjust_mtu). IPv6 on the slaves then sends packets that are too large: these packets are lost, and
// the sender gets no ICMPv6 error.
type MTU6 struct{ Dev string }

func (m MTU6) String() string {
	return fmt.Sprintf("sysctl -w net.ipv6.conf.%s.mtu=$(cat /sys/class/net/%[1]s/mtu)", m.Dev)
}

// Add sets the IPv6 MTU to the link's MTU if the IPv6 MTU is larger.
func (m MTU6) Add(n *NS) error {
	l, err := n.LinkByName(m.Dev)
	if err != nil {
		return err
	}
	if l.checkMTU6() == nil {
		return errSame
	}
	return Sysctl{Key: "net/ipv6/conf/" + m.Dev + "/mtu", Value: strconv.Itoa(l.MTU)}.Add(n)
}

func (m MTU6) Del(*NS) error { return nil }

// Check returns an error if the IPv6 MTU is larger than the link's MTU. A smaller IPv6 MTU loses no packets.
func (m MTU6) Check(n *NS) error {
	l, err := n.LinkByName(m.Dev)
	if err != nil {
		return err
	}
	return l.checkMTU6()
}

func (l Link) checkMTU6() error {
	if l.MTU6 <= l.MTU {
		return nil
	}
	return fmt.Errorf(
		"IPv6 on %s sends packets of up to %d bytes, but the link takes at most %d bytes. Larger packets are lost "+
			"without an error",
		l.Name, l.MTU6, l.MTU)
}

// parseMTU6 returns the IPv6 MTU in the attribute IFLA_AF_SPEC of a link (DEVCONF_MTU6 of linux/ipv6.h), or 0 if the
// link has no IPv6.
func parseMTU6(families []byte) int {
	const conf, mtu = 2 /* IFLA_INET6_CONF */, 2
	if values := attrAt(families, unix.AF_INET6, conf); len(values) >= 4*(mtu+1) {
		return int(binary.NativeEndian.Uint32(values[4*mtu:]))
	}
	return 0
}
