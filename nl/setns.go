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

// callIn makes three system calls on one thread: setns(ns), the call with the number trap, and setns(home). The results
// are those of the kernel: -errno if a call fails. If the first call fails, callIn does not make the other two calls.
//
// runtime.LockOSThread would make the runtime start another thread, which takes 3 % of the time of a short process. So
// callIn is in assembly, which Go does not preempt (isAsyncSafePoint of package runtime): no other goroutine can run on
// the thread between the calls. Go's documentation does not promise this. If a release of Go preempts assembly, call
// runtime.LockOSThread instead.
//
//go:noescape
func callIn(ns, home, trap, a1, a2, a3, a4 uintptr) (entered, result, left uintptr)

// openFile opens a file whose content depends on the namespace, such as a sysctl. The open file belongs to the
// namespace n, whichever thread uses it.
func (n *NS) openFile(path string, mode int) (fd int, err error) {
	mode |= unix.O_CLOEXEC
	if n.isProcess {
		return unix.Open(path, mode, 0)
	}
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	home, done, err := n.returnNS()
	if err != nil {
		return -1, err
	}
	defer done()
	cwd := unix.AT_FDCWD
	return n.callResult(callIn(uintptr(n.fd), uintptr(home), unix.SYS_OPENAT, uintptr(cwd),
		uintptr(unsafe.Pointer(name)), uintptr(mode), 0))
}

// openSocket opens a socket in the namespace. The socket belongs to this namespace, whichever thread uses it.
func (n *NS) openSocket(domain, typ, protocol int) (fd int, err error) {
	typ |= unix.SOCK_CLOEXEC
	if n.isProcess {
		return unix.Socket(domain, typ, protocol)
	}
	home, done, err := n.returnNS()
	if err != nil {
		return -1, err
	}
	defer done()
	return n.callResult(callIn(uintptr(n.fd), uintptr(home), unix.SYS_SOCKET, uintptr(domain), uintptr(typ),
		uintptr(protocol), 0))
}

// callResult takes the results of callIn, and returns the result of the middle call. If the thread could not return to
// its namespace, the process ends, because Go would run other goroutines on this thread.
func (n *NS) callResult(entered, result, left uintptr) (int, error) {
	if err := syscallError(left); err != nil {
		fmt.Fprintf(os.Stderr, "a thread entered the network namespace %s, and cannot leave it: %v; the program ends\n",
			n.Name, err)
		unix.Exit(1)
	}
	if err := syscallError(entered); err != nil {
		return -1, fmt.Errorf("enter %s: %w", n.Name, err)
	}
	return int(result), syscallError(result)
}

func syscallError(result uintptr) error {
	if e := -int(result); e > 0 {
		return unix.Errno(e)
	}
	return nil
}

// returnNS returns the namespace to which the calling thread must return, and a function that closes it.
func (n *NS) returnNS() (home netns.NsHandle, done func(), err error) {
	if n.processNS != nil && n.processNS.fd.IsOpen() {
		return n.processNS.fd, func() {}, nil
	}
	if home, err = openThreadNS(); err != nil {
		return home, nil, fmt.Errorf("enter %s: %w", n.Name, err)
	}
	return home, func() { home.Close() }, nil
}
