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

// callIn makes three system calls: setns(ns), the call with the number trap, and setns(home). Each result is the
// kernel's, so a failure is -errno. If callIn cannot enter ns, it makes no other call.
//
// The three calls must be on one thread. Code in Go would lock its thread for this, and then the runtime starts another
// thread. That thread takes 3 % of the time of a short process, and each ADD opens sockets in two namespaces. Go does
// not preempt a function in assembly (isAsyncSafePoint of package runtime), so the goroutine cannot move to another
// thread between the calls. No release of Go promises that the goroutine stays on its thread. If a release of Go
// preempts such functions, replace callIn by a function that calls runtime.LockOSThread.
//
//go:noescape
func callIn(ns, home, trap, a1, a2, a3, a4 uintptr) (entered, result, left uintptr)

// open opens a file, for example a sysctl, as the namespace shows it. Any thread can then use the file: it always
// belongs to this namespace.
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

// openSocket opens a socket in the namespace. The socket stays in the namespace, whichever thread uses it.
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

// came takes the results of callIn, and returns the result of the middle call. If the thread could not return to its
// namespace, came ends the process. Otherwise Go would run other goroutines on that thread.
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

// failed returns the error in the result of a system call, or nil.
func failed(result uintptr) error {
	if e := -int(result); e > 0 {
		return unix.Errno(e)
	}
	return nil
}

// wayBack returns the namespace of the calling thread, and a function that closes it.
func (n *NS) wayBack() (home netns.NsHandle, done func(), err error) {
	if n.home != nil && n.home.fd.IsOpen() {
		return n.home.fd, func() {}, nil
	}
	if home, err = ofThread(); err != nil {
		return home, nil, fmt.Errorf("enter %s: %w", n.Name, err)
	}
	return home, func() { home.Close() }, nil
}
