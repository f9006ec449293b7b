// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package nl configures the network of two namespaces, the node's and a pod's.
//
// The package uses the words of ip(8), sysctl(8) and nft(8). An [Object] is a link, an address, a route, a rule, a
// neighbour, a sysctl or a table of nftables. An Object can be added, checked and deleted, and its String method
// returns the command that would add it. A [Wiring] is a list of Objects. On ADD, a plugin adds all Objects of its
// Wiring. On CHECK it checks them, and on DEL it deletes them. docs/node.md shows the Wirings of our plugins as
// commands.
//
// Wiring.Add and Wiring.Del are idempotent: a second call changes nothing and succeeds. If an Object exists with other
// properties, Add returns an error and does not change the Object. Some Add methods replace such an Object instead: the
// comments of these methods say so.
//
// The package uses netlink, bpf(2), ioctl(2) and the files of sysctls, and executes no program. In our programs, no
// other package opens network namespaces or uses nftables. The only other package that uses netlink is package ask.
// Package nl knows nothing of CNI, EC2, or the purpose of a Wiring.
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

// RouteProtocol is the protocol number of our routes and rules: "protocol 72" in ip(8). Other programs use the numbers
// below 64, and some numbers above 64: see rt_protos of iproute2.
const RouteProtocol = 72

// An NS is a network namespace, with its file descriptor and the netlink sockets that were opened in it. A socket
// belongs to the namespace in which it was opened, whichever thread uses it. So a thread enters the namespace for two
// purposes only: to run the function of Do, and to open a socket or a file. Only one goroutine at a time may use an NS.
type NS struct {
	Name string // for messages: "node", "pod"

	fd        netns.NsHandle
	isProcess bool   // this is the process's namespace: see isProcessNS
	processNS *NS    // the process's NS, if its OpenOther has opened this NS; otherwise nil
	keptOpen  bool   // Close does nothing: the function release of KeepOpen closes the namespace
	keptOther *NS    // the first namespace that OpenOther has opened, if keptOpen is true
	keptPath  string // the path of keptOther

	mu         sync.Mutex      // held while an entry of sockets or sysctlDirs is opened, used or closed
	sockets    map[int]*socket // by netlink family
	sysctlDirs map[string]int  // directories below /proc/sys, see openSysctl

	indices     map[string]int  // the index of each link, by its name; nil: n remembers none, see rememberIndices
	seen        map[string]Link // links for SeenLink, by the link's name; nil unless keptOpen is true
	linkDeleted bool            // delLink has deleted a link since the last call of forgetDeleted
	listCache   *listCache      // nil unless List was called
}

// Open opens the namespace at path. The error is fs.ErrNotExist if there is no file at path, or if the file is not a
// namespace any more.
func Open(name, path string) (*NS, error) {
	fd, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	if !isNamespace(int(fd)) {
		fd.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, os.ErrNotExist)
	}
	return newNS(name, fd), nil
}

// OpenOther opens the namespace at path like [Open]. The error is fs.ErrNotExist if path leads to n itself. A path like
// /proc/PID/ns/net may lead to the node's namespace when the container's process has ended: the kernel can give the PID
// to a process of the node. If a context keeps n open (see [KeepOpen]), the context also keeps open the first namespace
// that OpenOther opens.
func (n *NS) OpenOther(name, path string) (*NS, error) {
	if n.keptOther != nil && n.keptPath == path {
		return n.keptOther, nil
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
	if n.isProcess {
		other.processNS = n
	}
	if n.keptOpen && n.keptOther == nil {
		other.keepOpen()
		n.keptOther, n.keptPath = other, path
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

func newNS(name string, fd netns.NsHandle) *NS {
	return &NS{Name: name, fd: fd, sockets: map[int]*socket{}}
}

// openThreadNS opens the namespace of the calling thread. The path /proc/thread-self needs only one system call. With
// /proc/self/task/TID, the goroutine could move to another thread after it has asked for TID.
func openThreadNS() (netns.NsHandle, error) { return netns.GetFromPath("/proc/thread-self/ns/net") }

// isProcessNS reports whether n is the namespace of all threads that no goroutine has locked. n must be the namespace
// of the calling thread. /proc/self/ns/net does not help: it is the namespace of the first thread, which Do may have
// moved to another namespace.
func (n *NS) isProcessNS() (is bool) {
	thread := unix.Gettid()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if is = unix.Gettid() == thread; is { // two goroutines share a thread only if neither has locked it
			return
		}
		fd, err := openThreadNS()
		is = err == nil && n.fd.Equal(fd)
		fd.Close()
	}()
	<-done
	return is
}

// Close closes the namespace's file descriptor and its sockets. If a context keeps n open (see [KeepOpen]), Close does
// nothing.
func (n *NS) Close() error {
	if n.keptOpen {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sockets {
		s.close()
	}
	clear(n.sockets)
	for _, fd := range n.sysctlDirs {
		unix.Close(fd)
	}
	clear(n.sysctlDirs)
	return n.fd.Close()
}

// Do runs f on a thread that is in the namespace. Netlink sockets and sysctls do not need Do: other methods open them
// in the namespace. Goroutines that f starts do not run in the namespace. f must not use any NS: the methods of the
// process's NS assume that the calling thread is in the process's namespace. If f panics, Do panics on the goroutine of
// the caller.
func (n *NS) Do(f func() error) error {
	if n.isProcess {
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
