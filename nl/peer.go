// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IsPeer reports whether two links are the ends of one veth pair. One link is near, a link of n. The other link is in
// the namespace other, and has the index. IsPeer uses only the kernel's answer about near. A pod chooses the names and
// indices of its own links. So two links of a pod could have the names and indices of another pod's pair.
func (n *NS) IsPeer(near Link, other *NS, index int) bool {
	if near.Kind != "veth" || near.Peer != index || near.peerNS == 0 {
		return false
	}
	ns, err := n.numberOf(other)
	return err == nil && near.peerNS == ns
}

// A Namespaces maps a number to the path of a namespace. The number is 1 + the ID that the kernel has given to the
// namespace in another namespace. By the number, a caller finds the namespace to which a link leads, and need not open
// each namespace.
type Namespaces map[uint32]string

// Know adds the namespace at a path to the map. Know leaves out a namespace that is gone, and a namespace to which no
// link of n leads.
func (k Namespaces) Know(n *NS, path string) {
	other, err := n.OpenOther("pod", path)
	if err != nil {
		return
	}
	defer other.Close()
	if number, err := n.numberOf(other); err == nil && number != 0 {
		k[number] = path
	}
}

// At returns the path of the namespace that has the other end of a pair, or "".
func (k Namespaces) At(near Link) string { return k[near.peerNS] }

// numberOf returns 1 + the ID that another namespace has in n (ip-netns(8)), or 0 if it has no ID there. When the
// kernel describes a link of n that leads to another namespace, the kernel gives that namespace an ID.
func (n *NS) numberOf(other *NS) (ns uint32, err error) {
	gen := nl.NewRtGenMsg()
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETNSID, 0, unix.RTM_NEWNSID, gen,
		attr32(unix.NETNSA_FD, uint32(other.fd)))
	for _, m := range msgs {
		for typ, value := range attrsOf(m[gen.Len():]) {
			if typ == unix.NETNSA_NSID {
				ns = number(value) + 1 // 0 for NETNSA_NSID_NOT_ASSIGNED, which is -1
			}
		}
	}
	return ns, err
}
