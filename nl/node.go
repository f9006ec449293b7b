// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"context"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Node opens the namespace of the calling thread. A plugin runs in the node's namespace. Node also finds out whether
// this namespace is the namespace of the process.
func Node() (*NS, error) {
	n, err := bySocket()
	if err != nil { // Linux before 4.10, or the process lacks a capability
		fd, err := ofThread()
		if err != nil {
			return nil, fmt.Errorf("open the node's network namespace: %w", err)
		}
		n = open("node", fd)
	}
	n.process = n.ofProcess()
	return n, nil
}

// bySocket opens the namespace of the calling thread by a netlink socket (ioctl_ns(2)). Nearly all callers also need
// this socket for other purposes. Opening the namespace by /proc takes three times as long.
func bySocket() (*NS, error) {
	n := &NS{Name: "node", process: true, sockets: map[int]*socket{}}
	s, err := n.netlink(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	fd, err := unix.IoctlRetInt(s.fd, unix.SIOCGSKNS)
	if err != nil {
		s.close()
		return nil, err
	}
	n.fd, n.sockets[unix.NETLINK_ROUTE] = netns.NsHandle(fd), s
	return n, nil
}

// A keeper holds the node's namespace for one command.
type keeper struct{ node *NS }

type keeperKey struct{}

// KeepOpen returns a context that keeps namespaces open. With this context, [NodeOf] opens the node's namespace only
// once, and OpenOther of this namespace opens the pod's namespace only once. A process in which several plugins answer
// one command uses KeepOpen. Close of the two namespaces does nothing until release is called. All users of the context
// work one after the other, in the same node's namespace, and for one pod.
func KeepOpen(ctx context.Context) (_ context.Context, release func()) {
	k := &keeper{}
	return context.WithValue(ctx, keeperKey{}, k), func() {
		for n := k.node; n != nil; n = n.other {
			n.kept = false
			_ = n.Close() // closing a file of nsfs cannot lose anything
		}
	}
}

// NodeOf returns the node's namespace that the context keeps, or opens the node's namespace. The caller closes the
// namespace.
func NodeOf(ctx context.Context) (*NS, error) {
	k, keeps := ctx.Value(keeperKey{}).(*keeper)
	if !keeps {
		return Node()
	}
	if k.node == nil {
		n, err := Node()
		if err != nil {
			return nil, err
		}
		n.keep()
		k.node = n
	}
	return k.node, nil
}

// keep makes Close do nothing, and makes the namespace remember links: see remember and SeenLink.
func (n *NS) keep() { n.kept, n.indices, n.seen = true, map[string]int{}, map[string]Link{} }

// InPod calls f with the node's namespace and the pod's namespace, which is at the path.
func InPod(ctx context.Context, path string, f func(node, pod *NS) error) error {
	node, err := NodeOf(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	pod, err := node.OpenOther("pod", path)
	if err != nil {
		return err
	}
	defer pod.Close()
	return f(node, pod)
}
