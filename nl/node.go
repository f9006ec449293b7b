// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"context"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Node opens the namespace of the calling thread. This is the node's namespace, because container runtimes start
// plugins in the node's namespace.
func Node() (*NS, error) {
	n, err := nodeBySocket()
	if err != nil { // the kernel is older than 4.10, or the process lacks a capability
		fd, err := openThreadNS()
		if err != nil {
			return nil, fmt.Errorf("open the node's network namespace: %w", err)
		}
		n = newNS("node", fd)
	}
	n.isProcess = n.isProcessNS()
	return n, nil
}

// nodeBySocket opens a netlink socket, and gets the namespace of the calling thread from this socket (ioctl_ns(2)).
// Nearly all callers need the socket anyway. To open the namespace's path in /proc would take three times the time of
// this ioctl.
func nodeBySocket() (*NS, error) {
	n := &NS{Name: "node", isProcess: true, sockets: map[int]*socket{}}
	s, err := n.openNetlink(unix.NETLINK_ROUTE)
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

// A keeper is the value that [KeepOpen] stores in a context: the node's namespace, or nil before the first call of
// NodeOf.
type keeper struct{ node *NS }

type keeperKey struct{}

// KeepOpen is for a process in which several plugins, one after the other, do their parts of one command. With the
// returned context, the plugins open the node's namespace ([NodeOf]) and the pod's namespace (OpenOther) only once. The
// method Close of these NSs does nothing: the returned function release closes them. All users of the context must run
// on the same node, and work for the same pod.
func KeepOpen(ctx context.Context) (_ context.Context, release func()) {
	k := &keeper{}
	return context.WithValue(ctx, keeperKey{}, k), func() {
		for n := k.node; n != nil; n = n.keptOther {
			n.keptOpen = false
			_ = n.Close() // ignore an error, because closing a namespace cannot lose data
		}
	}
}

// NodeOf is like [Node], but with a context from [KeepOpen], it opens the namespace only once. The caller must always
// call Close.
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
		n.keepOpen()
		k.node = n
	}
	return k.node, nil
}

// keepOpen makes Close do nothing, and makes n remember links (see rememberIndices and SeenLink).
func (n *NS) keepOpen() { n.keptOpen, n.indices, n.seen = true, map[string]int{}, map[string]Link{} }

// InPod calls f with the node's namespace and the pod's namespace. path leads to the pod's namespace.
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
