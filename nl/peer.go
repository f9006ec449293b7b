// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IsPeer reports whether a link of n has a certain other end. The parameter nearEnd is the link of n. The other end
// must be in the namespace "other", and the parameter index must be its index in this namespace. IsPeer relies only on
// what the kernel says about nearEnd. It does not look at the links in the other namespace, because a pod's links can
// have the names and indices of another pod's links.
func (n *NS) IsPeer(nearEnd Link, other *NS, index int) bool {
	if nearEnd.Kind != "veth" || nearEnd.Peer != index || nearEnd.peerNS == 0 {
		return false
	}
	ns, err := n.nsNumber(other)
	return err == nil && nearEnd.peerNS == ns
}

// Namespaces maps IDs of namespaces to paths. A namespace n has an ID for each other namespace that its links lead to
// (ip-netns(8)). A Namespaces has the IDs of one such n. The key is 1 + the ID. With this map, a caller finds the
// namespace of a pair's other end without opening all namespaces again for each pair.
type Namespaces map[uint32]string

// Know adds the namespace at path to the map. The key is 1 + the ID of this namespace in the namespace n. If the
// namespace at path is gone, Know does nothing. Know also does nothing if the namespace has no ID in n: then no link of
// n has its other end in that namespace.
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
// n. Some links of n have their other end or their master in another namespace. When the kernel first sends a message
// about such a link, it gives the other namespace an ID.
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
