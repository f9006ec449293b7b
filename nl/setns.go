// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// callIn makes three system calls: setns(ns), the one with the number trap, and setns(home). Each result is the
// kernel's, so -errno is a failure. If it cannot enter ns, it makes no other call.
//
// The three calls must be on one thread. In Go, a goroutine would lock its thread, and then the runtime starts another
// thread. The further thread takes 3 % of a short process, and each ADD opens sockets in two namespaces. Go preempts no
// function in assembly (isAsyncSafePoint of package runtime), so the goroutine cannot move to another thread in
// between. No release of Go promises that. If it ends, the calls go into a function with runtime.LockOSThread.
//
//go:noescape
func callIn(ns, home, trap, a1, a2, a3, a4 uintptr) (entered, result, left uintptr)

// open opens a file in the namespace. The file stays there, whichever thread uses it.
func (n *NS) open(path string, mode int) (fd int, err error) {
	mode |= unix.O_CLOEXEC
	if n.process {
		return unix.Open(path, mode, 0)
	}
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	home, done, err := n.wayBack()
	if err != nil {
		return -1, err
	}
	defer done()
	cwd := unix.AT_FDCWD
	return n.came(callIn(uintptr(n.fd), uintptr(home), unix.SYS_OPENAT, uintptr(cwd), uintptr(unsafe.Pointer(name)),
		uintptr(mode), 0))
}

// openSocket opens a socket in the namespace. The socket stays there, whichever thread uses it.
func (n *NS) openSocket(domain, typ, protocol int) (fd int, err error) {
	typ |= unix.SOCK_CLOEXEC
	if n.process {
		return unix.Socket(domain, typ, protocol)
	}
	home, done, err := n.wayBack()
	if err != nil {
		return -1, err
	}
	defer done()
	return n.came(callIn(uintptr(n.fd), uintptr(home), unix.SYS_SOCKET, uintptr(domain), uintptr(typ),
		uintptr(protocol), 0))
}

// came is what callIn has returned. If the thread cannot come back, it ends the process: Go would run any goroutine on
// it.
func (n *NS) came(entered, result, left uintptr) (int, error) {
	if err := failed(left); err != nil {
		fmt.Fprintf(os.Stderr, "a thread entered the network namespace %s, and cannot leave it: %v; the program ends\n",
			n.Name, err)
		unix.Exit(1)
	}
	if err := failed(entered); err != nil {
		return -1, fmt.Errorf("enter %s: %w", n.Name, err)
	}
	return int(result), failed(result)
}

// failed is the error in the result of a system call.
func failed(result uintptr) error {
	if e := -int(result); e > 0 {
		return unix.Errno(e)
	}
	return nil
}

// wayBack returns the namespace of the calling thread, and what closes it.
func (n *NS) wayBack() (home netns.NsHandle, done func(), err error) {
	if n.home != nil && n.home.fd.IsOpen() {
		return n.home.fd, func() {}, nil
	}
	if home, err = ofThread(); err != nil {
		return home, nil, fmt.Errorf("enter %s: %w", n.Name, err)
	}
	return home, func() { home.Close() }, nil
}
