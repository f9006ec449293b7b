// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package nl configures the network of two namespaces, the node's and a pod's.
//
// The package uses the words of ip(8), sysctl(8) and nft(8). An Object is a link, an address, a route, a rule, a
// neighbour, a sysctl or a table of netfilter rules. A caller can add, delete and check an Object, and an Object prints
// as the command that would add it. A Wiring is a list of objects. ADD adds the objects of a list, CHECK checks them,
// and DEL deletes them. docs/node.md shows the lists that our plugins use, as these commands.
//
// Adding an object twice has the same effect as adding it once. Deleting an object twice has the same effect as
// deleting it once. If an object exists with other properties, Add returns an error and does not change the object. The
// Add methods of some objects replace it instead, and their comments say so.
//
// The package uses netlink, bpf(2), ioctl(2) and the files of sysctls, and executes no program. In our programs, no
// other package opens namespaces as file descriptors or uses nftables. Of the other packages, only package ask uses
// netlink, by vishvananda/netlink. The simulators also use vishvananda/netlink. Package nl knows nothing of CNI, EC2,
// or the purpose of a wiring.
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

// RouteProtocol marks our routes and rules: "protocol 72" in ip(8). Other programs use the numbers below 64, and some
// numbers above 64: see rt_protos of iproute2.
const RouteProtocol = 72

// An NS is a network namespace, with its file descriptor and the netlink sockets that were opened in it. A socket stays
// in its namespace, whichever thread uses it. So a thread enters the namespace only in Do, and while a socket or a file
// is opened. Only one goroutine at a time may use an NS.
type NS struct {
	Name string // for people: "node", "pod"

	fd      netns.NsHandle
	process bool   // this is the namespace of the process: all threads that no goroutine has locked are in it
	home    *NS    // the NS of the process, if OpenOther of that NS has opened this NS
	kept    bool   // Close does nothing: the release of KeepOpen closes the namespace
	other   *NS    // the first namespace that OpenOther has opened, if kept is set
	path    string // the path of other

	mu      sync.Mutex      // held while an entry of the next two maps is opened, used or closed:
	sockets map[int]*socket // by netlink family
	sysctls map[string]int  // directories below /proc/sys, see openSysctl

	indices map[string]int  // of links, by name; nil unless a Wiring or a command needs them repeatedly
	seen    map[string]Link // for SeenLink, by name; nil unless kept is set
	lost    bool            // a link has been deleted
	listed  *listing        // see List
}

// Open opens the namespace at path. The error is fs.ErrNotExist if there is no file, or if no namespace is mounted on
// the file any more.
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

// OpenOther opens the namespace at path like [Open]. If path leads to n itself, the error is fs.ErrNotExist. After the
// container's process has ended, a path like /proc/PID/ns/net can lead to another namespace, also to the node's. If a
// context keeps n (see [KeepOpen]), the context also keeps the first namespace that OpenOther opens.
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

// IsAt reports whether a path leads to the namespace. IsAt does not open the file.
func (n *NS) IsAt(path string) bool {
	var there, own unix.Stat_t
	err := errors.Join(unix.Stat(path, &there), unix.Fstat(int(n.fd), &own))
	return err == nil && there.Dev == own.Dev && there.Ino == own.Ino
}

// isNamespace reports whether a file is a namespace. When a namespace is unmounted, an empty file remains.
func isNamespace(fd int) bool {
	var s unix.Statfs_t
	return unix.Fstatfs(fd, &s) == nil && s.Type == unix.NSFS_MAGIC
}

func open(name string, fd netns.NsHandle) *NS {
	return &NS{Name: name, fd: fd, sockets: map[int]*socket{}}
}

// ofThread opens the namespace of the calling thread in one system call. If a goroutine first asked for its thread's
// number, the goroutine could move to another thread before it opens the first thread's file.
func ofThread() (netns.NsHandle, error) { return netns.GetFromPath("/proc/thread-self/ns/net") }

// ofProcess reports whether n, the calling thread's namespace, is also the namespace of the threads that no goroutine
// has locked. All such threads have the same namespace. The file /proc/self/ns/net may lead to another namespace: the
// namespace of the first thread, which Do may have moved.
func (n *NS) ofProcess() (is bool) {
	thread := unix.Gettid()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if is = unix.Gettid() == thread; is { // so the caller has not locked its thread
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

// Do runs f in the namespace. Use Do only if neither a netlink socket nor a file that was opened in the namespace is
// enough. If the namespace is not the one of the process, f runs on a thread of its own. Goroutines that f starts do
// not run in the namespace. f must not use an NS: the NS of the process assumes that the calling thread is in the
// namespace of the process. If f panics, Do panics on the goroutine of the caller, where the caller can recover.
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
