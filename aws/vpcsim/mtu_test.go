// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"fmt"
	"net"
	"syscall"
)

// mtu is what the kernel knows of the path to the other end: ip(7), IP_MTU.
func mtu(c *net.UDPConn) (text string, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return "", err
	}
	var n int
	control := raw.Control(func(fd uintptr) {
		n, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU)
	})
	if control != nil {
		return "", control
	}
	return fmt.Sprint(n), err
}
