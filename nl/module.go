// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import "golang.org/x/sys/unix"

// loadModule asks the kernel for a module by its name. Most modules name what they are for, so that a request loads
// them. fou and fou6 do not. But the kernel also takes the name of a link that it does not know for a module's, if the
// caller has CAP_SYS_MODULE (dev_load, net/core/dev_ioctl.c). Only the code that needs the module can find out if it is
// there.
func (n *NS) loadModule(name string) {
	fd, err := n.openSocket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if link, err := unix.NewIfreq(name); err == nil {
		_ = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, link) // ENODEV
	}
}
