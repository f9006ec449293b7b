// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IsPeer reports whether the other end of nearEnd is the link with the given index in the namespace "other". nearEnd is
// a link of n. IsPeer relies only on what the kernel says about nearEnd, because a pod's links can have the names and
// indices of another pod's links.
func (n *NS) IsPeer(nearEnd Link, other *NS, index int) bool {
	if nearEnd.Kind != "veth" || nearEnd.Peer != index || nearEnd.peerNS == 0 {
		return false
	}
	ns, err := n.nsNumber(other)
	return err == nil && nearEnd.peerNS == ns
}

// Namespaces has the paths of namespaces. The key of a namespace is 1 + its ID in another namespace n (ip-netns(8)).
// With this map, a caller finds the other ends of pairs without opening all namespaces for each pair.
type Namespaces map[uint32]string

// Know adds the namespace at path to the map. If the namespace is gone, or has no ID in n, Know does nothing. If a
// namespace has no ID in n, no link of n has its other end there.
func (k Namespaces) Know(n *NS, path string) {
	other, err := n.OpenOther("pod", path)
	if err != nil {
		return
	}
	defer other.Close()
	if number, err := n.nsNumber(other); err == nil && number != 0 {
		k[number] = path
	}
}

// At returns the path of the namespace that has the other end of nearEnd, or "" if the map does not have this
// namespace.
func (k Namespaces) At(nearEnd Link) string { return k[nearEnd.peerNS] }

// nsNumber returns 1 + the ID that another namespace has in n (ip-netns(8)), or 0 if the other namespace has no ID in
// n. A link of n may have its other end or its master in the other namespace. The other namespace gets the ID when the
// kernel first sends a message about one of these links.
func (n *NS) nsNumber(other *NS) (ns uint32, err error) {
	gen := nl.NewRtGenMsg()
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETNSID, 0, unix.RTM_NEWNSID, gen,
		attr32(unix.NETNSA_FD, uint32(other.fd)))
	for _, m := range msgs {
		for typ, value := range attrsOf(m[gen.Len():]) {
			if typ == unix.NETNSA_NSID {
				ns = nativeUint(value) + 1 // 0 for NETNSA_NSID_NOT_ASSIGNED, which is -1
			}
		}
	}
	return ns, err
}
