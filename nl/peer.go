// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IsPeer reports whether near, a link of n, is one end of a veth pair whose other end is the
// link of other with that index. It uses only the kernel's answer about near. A pod chooses the
// names and indices of its own links, so two of them could look like another pod's pair.
func (n *NS) IsPeer(near Link, other *NS, index int) bool {
	if near.Kind != "veth" || near.Peer != index || near.peerNS == 0 {
		return false
	}
	ns, err := n.numberOf(other)
	return err == nil && near.peerNS == ns
}

// numberOf is 1 + the ID by which n knows another namespace, ip-netns(8); 0 if it has none. The
// kernel gives an ID to each namespace to which a link of n leads, when it describes the link.
func (n *NS) numberOf(other *NS) (ns uint32, err error) {
	gen := nl.NewRtGenMsg()
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETNSID, 0, unix.RTM_NEWNSID, gen, attr32(unix.NETNSA_FD, uint32(other.fd)))
	for _, m := range msgs {
		for typ, value := range attrsOf(m[gen.Len():]) {
			if typ == unix.NETNSA_NSID {
				ns = number(value) + 1 // of NETNSA_NSID_NOT_ASSIGNED, -1
			}
		}
	}
	return ns, err
}
