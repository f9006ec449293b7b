// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filtered is set in the environment of a program that is to stop only at calls that are not passing. A runtime like
// Go's makes ten times as many such calls.
const filtered = "TRACE_FILTERED"

// The program is a test binary, and so it has this package.
func init() {
	if os.Getenv(filtered) == "" {
		return
	}
	if err := install(); err != nil {
		panic(fmt.Errorf("install a filter of system calls: %w", err))
	}
}

// install has all threads of this process stop at calls that are not passing; seccomp(2).
func install() error {
	code := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	for i, nr := range passing {
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(passing) - i),
			K: uint32(nr)})
	}
	code = append(code, unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_TRACE},
		unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW})
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}
