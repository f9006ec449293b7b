// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// System calls that have other names on other architectures, or do not exist there.
const (
	fstatat      = unix.SYS_NEWFSTATAT
	threadMemory = unix.SYS_ARCH_PRCTL
)

// failCall makes a system call of a thread fail with errno. The thread must have stopped at the beginning of this call.
// failCall replaces the call's number by a number that no system call has, so the kernel does not execute the call.
func failCall(tid int, errno syscall.Errno) error {
	var regs syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	regs.Orig_rax = ^uint64(0)
	regs.Rax = -uint64(errno)
	return syscall.PtraceSetRegs(tid, &regs)
}
