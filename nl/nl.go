// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package nl configures the network of two namespaces, the node's and a pod's.
//
// Its words are the words of ip(8), sysctl(8) and nft(8). An Object is a link, an address, a route, a rule, a
// neighbour, a sysctl or a table of netfilter rules. A caller can add, delete and check an Object, and an Object prints
// as the command that would add it. A Wiring is a list of objects. So ADD adds, CHECK checks and DEL deletes one list,
// and the list is also the documentation.
//
// To add an object twice has the same effect as to add it once. To delete an object twice has the same effect as to
// delete it once. An object that exists with other properties is an error, and stays as it is.
//
// Everything goes over netlink; no program is executed. This is the only package of the programs that uses namespaces
// as file descriptors, and nftables. Only package ask uses netlink, too, by vishvananda/netlink, as simulators do.
// Package nl knows nothing of CNI, EC2, or the purpose of a wiring.
package nl

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks our routes and rules: "protocol 72" in ip(8). Others use the numbers below
// 64 and some above, see rt_protos of iproute2.
const RouteProtocol = 72

// An NS is a network namespace with its file and the netlink sockets opened in it. A socket
// stays in its namespace whichever thread uses it, so only Do moves threads. An NS serves one
// goroutine at a time.
type NS struct {
	Name string // for people: "node", "pod"

	fd      netns.NsHandle
	process bool   // it is the namespace of the process: each thread that no goroutine has locked is in it
	home    *NS    // the namespace of the process, if n is another one that it has opened
	kept    bool   // Close does nothing: a keeper closes it
	other   *NS    // that OpenOther has opened first, if this one is kept
	path    string // of the other

	mu      sync.Mutex      // held while one of these is opened, used or closed:
	sockets map[int]*socket // by netlink family
	sysctls map[string]int  // directories below /proc/sys, see openSysctl

	indices map[string]int  // of links, while a Wiring or a command is at work that needs them repeatedly
	seen    map[string]Link // for SeenLink, while a command is at work
	lost    bool            // a link has been deleted
	listed  *listing        // see List
}

// Open opens the namespace at path. The error is fs.ErrNotExist if
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

// OpenOther opens the namespace at path like [Open], unless it is n itself. A path like /proc/PID/ns/net can lead to
// another namespace after the container's process has ended, also to the node's. If a context keeps n (see [KeepOpen]),
// it keeps the other namespace, too.
func (n *NS) OpenOther(name, path string) (*NS, error) {
	if n.other != nil && n.path == path {
		return n.other, nil
	}
	other, err := Open(name, path)
	if err != nil {
		return nil, err
	}
	if n.fd.Equal(other.fd) {
		other.Close()
		return nil, fmt.Errorf("open network namespace %s: it is the %s's own namespace: %w", path, n.Name,
			os.ErrNotExist)
	}
	if n.process {
		other.home = n
	}
	if n.kept && n.other == nil {
		other.keep()
		n.other, n.path = other, path
	}
	return other, nil
}

// IsAt reports whether a path leads to the namespace. It does not open what is there.
func (n *NS) IsAt(path string) bool {
	var there, own unix.Stat_t
	err := errors.Join(unix.Stat(path, &there), unix.Fstat(int(n.fd), &own))
	return err == nil && there.Dev == own.Dev && there.Ino == own.Ino
}

// isNamespace reports whether a file is a namespace, and not the empty file that its mount has left.
func isNamespace(fd int) bool {
	var s unix.Statfs_t
	return unix.Fstatfs(fd, &s) == nil && s.Type == unix.NSFS_MAGIC
}

func open(name string, fd netns.NsHandle) *NS {
	return &NS{Name: name, fd: fd, sockets: map[int]*socket{}}
}

// ofThread opens the namespace of the calling thread in one system call. A goroutine that first
// asks for its thread's number may be on another thread then, and the first one elsewhere.
func ofThread() (netns.NsHandle, error) { return netns.GetFromPath("/proc/thread-self/ns/net") }

// ofProcess reports whether n, the calling thread's namespace, is also the namespace of the threads that no goroutine
// has locked. All such threads have the same namespace. The namespace in /proc/self may be another: Do may have moved
// the first thread of the process.
func (n *NS) ofProcess() (is bool) {
	thread := unix.Gettid()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if is = unix.Gettid() == thread; is { // so the caller has not locked it
			return
		}
		fd, err := ofThread()
		is = err == nil && n.fd.Equal(fd)
		fd.Close()
	}()
	<-done
	return is
}

// Close releases the namespace.
func (n *NS) Close() error {
	if n.kept {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sockets {
		s.close()
	}
	clear(n.sockets)
	for _, fd := range n.sysctls {
		unix.Close(fd)
	}
	clear(n.sysctls)
	return n.fd.Close()
}

// Do runs f in the namespace, for what neither a netlink socket nor a file opened there can do. In another namespace
// than the process' own, f has its own thread. Goroutines that it starts do not run in the namespace. f uses no NS: one
// may take its thread for one in the namespace of the process. If f panics, so does Do: no caller could recover on that
// thread.
func (n *NS) Do(f func() error) error {
	if n.process {
		return f()
	}
	there, err := ns.GetNS(fmt.Sprintf("/proc/self/fd/%d", n.fd))
	if err != nil {
		return fmt.Errorf("enter %s: %w", n.Name, err)
	}
	defer there.Close()
	var fault any
	err = there.Do(func(ns.NetNS) error {
		defer func() {
			if p := recover(); p != nil {
				fault = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		return f()
	})
	if fault != nil {
		panic(fault)
	}
	return err
}
