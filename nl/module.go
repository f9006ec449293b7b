// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// loadModule makes the kernel load a module, by asking for a link with the module's name (dev_load,
// net/core/dev_ioctl.c). Only fou and fou6 need this: the kernel loads other modules by itself, because they have an
// alias that fits the request. The process needs CAP_SYS_MODULE. loadModule returns no error: the caller repeats the
// request that needs the module.
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

// ErrMayNotLoad reports that a module is missing, and that this process lacks the privilege to load modules. A process
// with this privilege may be able to load the module.
var ErrMayNotLoad = errors.New("this process lacks CAP_SYS_MODULE, so the kernel does not load modules for it")

// addMayNotLoad adds [ErrMayNotLoad] to an error about a missing part of the kernel, if this process lacks
// CAP_SYS_MODULE.
func addMayNotLoad(err error) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if unix.Capget(&head, &has[0]) == nil && has[0].Effective&(1<<unix.CAP_SYS_MODULE) != 0 {
		return err
	}
	return fmt.Errorf("%w; %w", err, ErrMayNotLoad)
}
