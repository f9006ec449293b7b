// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import "golang.org/x/sys/unix"

// loadModule asks the kernel to load a module by the module's name. Most modules declare their purpose, so the kernel
// loads them when a request needs them. The modules fou and fou6 declare no purpose. But if a program asks for a link
// that does not exist, the kernel loads the module of this name. The program needs CAP_SYS_MODULE for this (dev_load,
// net/core/dev_ioctl.c). loadModule does not report whether the module was loaded: the caller repeats the request that
// needs the module.
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
