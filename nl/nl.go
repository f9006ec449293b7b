// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package nl arranges the network of two namespaces, the host's and a pod's.
//
// Its words are those of ip(8), sysctl(8) and nft(8). An Object is a link, an
// address, a route, a rule, a neighbour, a sysctl or a table of netfilter
// rules: it can be added, deleted and checked, and it prints as the command
// that would add it. A Wiring is a list of objects, so one list is what ADD
// adds, what CHECK checks, what DEL deletes, and the documentation of all three.
//
// Adding twice is the same as adding once, and so is deleting. What is there
// already, but otherwise than asked for, is an error and is left alone.
//
// Everything goes over netlink; nothing is ever executed. This is the only
// package that knows netlink, namespaces as file descriptors, and nftables; it
// knows nothing of CNI, of EC2, or of what the wiring is for.
package nl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the routes and rules that are ours: "protocol 72" to
// ip(8). The numbers below 64 and some above are taken, see rt_protos of
// iproute2.
const RouteProtocol = 72

// An NS is a network namespace, held by its file and by netlink sockets opened
// in it. A socket stays in its namespace whichever thread uses it, so that only
// Do has to move threads. It serves one goroutine at a time.
type NS struct {
	Name string // for people: "host", "pod"

	fd      netns.NsHandle
	process bool // it is that of the process: each thread that no goroutine has locked is in it

	mu      sync.Mutex      // held while one of these is opened, used or closed:
	sockets map[int]*socket // by netlink family
	nft     *nftables.Conn

	indices map[string]int // of links, while a Wiring is at work that asks for them again and again
}

// Host opens the namespace of the calling thread, which for a plugin is the
// host's.
func Host() (*NS, error) {
	fd, err := ofThread()
	if err != nil {
		return nil, fmt.Errorf("open the host's network namespace: %w", err)
	}
	n := open("host", fd)
	n.process = n.is(anyThread())
	return n, nil
}

// Open opens the namespace at path. The error answers to fs.ErrNotExist if
// there is none: no file, or a file that no namespace is mounted on any more.
func Open(name, path string) (*NS, error) {
	fd, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	if !isNamespace(int(fd)) {
		fd.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, os.ErrNotExist)
	}
	return open(name, fd), nil
}

// OpenOther opens the namespace at path like [Open], if it is another than n: that of a
// container may be the host's by now, where its path goes by the number of a process.
func (n *NS) OpenOther(name, path string) (*NS, error) {
	other, err := Open(name, path)
	if err == nil && n.fd.Equal(other.fd) {
		other.Close()
		return nil, fmt.Errorf("open network namespace %s: it is the %s's own: %w", path, n.Name, os.ErrNotExist)
	}
	return other, err
}

// isNamespace tells a namespace from the empty file that its mount has left.
func isNamespace(fd int) bool {
	var s unix.Statfs_t
	return unix.Fstatfs(fd, &s) == nil && s.Type == unix.NSFS_MAGIC
}

func open(name string, fd netns.NsHandle) *NS {
	return &NS{Name: name, fd: fd, sockets: map[int]*socket{}}
}

// ofThread opens the namespace of the calling thread. It is asked for in one system
// call: a goroutine that learns its thread's number first may be on another one by then,
// and the first in another namespace.
func ofThread() (netns.NsHandle, error) { return netns.GetFromPath("/proc/thread-self/ns/net") }

// anyThread returns the namespace of a thread that no goroutine has locked, and
// so of every such thread. It is not that of /proc/self: the first thread of a
// process may be one that Do has moved.
func anyThread() (fd netns.NsHandle) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fd, _ = ofThread()
	}()
	<-done
	return fd
}

// is says whether fd is the same namespace, and closes it.
func (n *NS) is(fd netns.NsHandle) bool {
	defer fd.Close()
	return fd.IsOpen() && n.fd.Equal(fd)
}

// Close releases the namespace.
func (n *NS) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sockets {
		s.close()
	}
	clear(n.sockets)
	if n.nft != nil {
		_ = n.nft.CloseLasting()
	}
	return n.fd.Close()
}

// Do runs f in the namespace, for what a netlink socket cannot do: to read and
// write a sysctl, to open a socket that then stays there. f runs on a thread of
// its own, and goroutines that it starts do not run in the namespace.
func (n *NS) Do(f func() error) error {
	if n.process {
		return apart(f) // a thread that no goroutine has locked is there already
	}
	return apart(func() error { return n.enter(f) })
}

// apart runs f in another goroutine. If it panics so does apart: nobody could recover there.
func apart(f func() error) error {
	err := errors.New("interrupted") // f called runtime.Goexit
	var fault any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				fault = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		err = f()
	}()
	<-done
	if fault != nil {
		panic(fault)
	}
	return err
}

// enter moves this goroutine's thread into the namespace and back. If it cannot
// come back the thread stays locked, and ends with its goroutine.
func (n *NS) enter(f func() error) error {
	runtime.LockOSThread()
	home, err := ofThread()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", n.Name, err)
	}
	defer home.Close()
	if err := netns.Set(n.fd); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", n.Name, err)
	}
	defer func() {
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}
