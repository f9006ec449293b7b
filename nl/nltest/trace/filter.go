// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filterEnv is an environment variable. If the variable is set, the traced program installs a seccomp filter: see
// installFilter. The filter saves much time: for each call at which the program stops, the Go runtime makes about ten
// other calls.
const filterEnv = "TRACE_FILTERED"

// This function runs in the traced program, because the traced program is a test binary that contains this package.
func init() {
	if os.Getenv(filterEnv) == "" {
		return
	}
	if err := installFilter(); err != nil {
		panic(fmt.Errorf("install a filter of system calls: %w", err))
	}
}

// installFilter installs a filter of seccomp(2). With this filter, the threads of this process do not stop at the
// system calls in the variable harmless.
func installFilter() error {
	code := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	for i, nr := range harmless {
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
			Jt: uint8(len(harmless) - i), K: uint32(nr)})
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
