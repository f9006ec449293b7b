// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IsPeer reports whether near is one end of a veth pair whose other end is a certain link. near is a link of n, and
// that link has the index in the namespace other. IsPeer uses only the kernel's answer about near. A pod chooses the
// names and indices of its own links, so two of them could look like another pod's pair.
func (n *NS) IsPeer(near Link, other *NS, index int) bool {
	if near.Kind != "veth" || near.Peer != index || near.peerNS == 0 {
		return false
	}
	ns, err := n.numberOf(other)
	return err == nil && near.peerNS == ns
}

// A Namespaces knows namespaces by the number that the kernel has given them in another. So it finds the one to which a
// link leads without a look at each.
type Namespaces map[uint32]string

// Know opens the namespace at a path, and remembers it. A namespace that is gone, or to which no link of n leads, is
// not remembered.
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

// numberOf is 1 + the ID by which n knows another namespace, ip-netns(8); 0 if it has none. The
// kernel gives an ID to each namespace to which a link of n leads, when it describes the link.
func (n *NS) numberOf(other *NS) (ns uint32, err error) {
	gen := nl.NewRtGenMsg()
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETNSID, 0, unix.RTM_NEWNSID, gen,
		attr32(unix.NETNSA_FD, uint32(other.fd)))
	for _, m := range msgs {
		for typ, value := range attrsOf(m[gen.Len():]) {
			if typ == unix.NETNSA_NSID {
				ns = number(value) + 1 // of NETNSA_NSID_NOT_ASSIGNED, -1
			}
		}
	}
	return ns, err
}
