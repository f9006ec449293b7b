// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

//go:build !amd64

package trace

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	fstatat      = unix.SYS_FSTATAT
	threadMemory = 1<<32 - 1 // no call has this number: on these machines, a thread sets up its memory without a call
)

// failCall returns an error, because it does not know the registers of this architecture.
func failCall(int, syscall.Errno) error {
	return fmt.Errorf("make a system call fail on %s: %w", runtime.GOARCH, errors.ErrUnsupported)
}
