// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// loadModule asks the kernel to load a module by the module's name. Most modules declare their purpose, so the kernel
// loads them when a request needs them. The modules fou and fou6 declare no purpose. But if a program asks for a link
// that does not exist, the kernel loads the module that has the name of the link. The program needs CAP_SYS_MODULE for
// this (dev_load, net/core/dev_ioctl.c). loadModule does not report whether the module was loaded: the caller repeats
// the request that needs the module.
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

// ErrMayNotLoad reports that the kernel lacks a part, and that this process may not have the kernel load the module. So
// another process may be able to have it loaded.
var ErrMayNotLoad = errors.New("this process lacks CAP_SYS_MODULE, so the kernel does not load modules for it")

// unloaded adds [ErrMayNotLoad] to an error about a missing part, if this process may not have modules loaded.
func unloaded(err error) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if unix.Capget(&head, &has[0]) == nil && has[0].Effective&(1<<unix.CAP_SYS_MODULE) != 0 {
		return err
	}
	return fmt.Errorf("%w; %w", err, ErrMayNotLoad)
}
