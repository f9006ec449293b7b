// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filtered is an environment variable. If it is set, the program does not stop at the calls in the list passing. The Go
// runtime makes ten times as many of these calls as of all other calls.
const filtered = "TRACE_FILTERED"

// The traced program is a test binary, which contains this package. So this function also runs in the traced program.
func init() {
	if os.Getenv(filtered) == "" {
		return
	}
	if err := install(); err != nil {
		panic(fmt.Errorf("install a filter of system calls: %w", err))
	}
}

// install makes all threads of this process stop at calls that are not in the list passing, by seccomp(2).
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
