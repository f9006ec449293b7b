// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Call is a system call of a traced thread.
type Call struct {
	Nr   uint64 // the number of the system call, such as unix.SYS_WRITE
	Args [6]uint64

	tid int
}

// File returns the path of the open file whose descriptor is Args[n].
func (c Call) File(n int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.tid, c.Args[n]))
	return path
}

// Text returns the string at the address Args[n], or its first 255 bytes.
func (c Call) Text(n int) string {
	var b [256]byte
	got, _ := syscall.PtracePeekData(c.tid, uintptr(c.Args[n]), b[:255])
	s, _, _ := strings.Cut(string(b[:got]), "\x00")
	return s
}

// Bytes returns n bytes of the traced program's memory, beginning at addr.
func (c Call) Bytes(addr uintptr, n int) ([]byte, error) {
	b := make([]byte, n)
	got, err := syscall.PtracePeekData(c.tid, addr, b)
	if err == nil && got < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("read %d bytes at %#x of %d: %w", n, addr, c.tid, err)
	}
	return b, nil
}

// The places at which a thread can stop: before or after a system call. See PTRACE_GET_SYSCALL_INFO in ptrace(2).
const (
	entry  = 1
	exit   = 2
	filter = 3 // like entry, but the seccomp filter has stopped the thread
)

// readCall returns the system call in which a thread has stopped. op is entry, exit or filter, or 0 if the kernel does
// not answer. At exit, the kernel does not report the number and the arguments, so c does not have them.
func readCall(tid int) (c Call, op uint8) {
	var info struct { // ptrace_syscall_info
		op     uint8
		_      [3]uint8
		arch   uint32
		ip, sp uint64
		nr     uint64 // valid only at the beginning of a system call
		args   [6]uint64
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid),
		unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return Call{}, 0
	}
	return Call{Nr: info.nr, Args: info.args, tid: tid}, info.op
}
