// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// What has other names elsewhere, or is not there.
const (
	fstatat      = unix.SYS_NEWFSTATAT
	threadMemory = unix.SYS_ARCH_PRCTL
)

// fail has the call at whose beginning a thread is not carried out, by making it one
// that there is not, and return an error.
func fail(tid int, errno syscall.Errno) error {
	var regs syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	regs.Orig_rax = ^uint64(0)
	regs.Rax = -uint64(errno)
	return syscall.PtraceSetRegs(tid, &regs)
}
