// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Scratch runs f in a namespace that nobody else sees, and that ends with f. It shows what the
// kernel can do. Modules that the kernel loads for that stay loaded.
func Scratch(f func(*NS) error) error {
	return apart(func() error {
		runtime.LockOSThread() // and never unlocked: the thread, and the namespace, end with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		n, err := Node()
		if err != nil {
			return err
		}
		defer n.Close()
		return f(n)
	})
}
