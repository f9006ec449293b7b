// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IsPeer tells whether the other end of a veth pair, of which near is a link of n, is the
// link of other with that index. It goes by what the kernel says of near: the links of a
// pod have the names and the indices that the pod gives them, and two of its own may well
// be each other's other ends under the numbers of somebody else's.
func (n *NS) IsPeer(near Link, other *NS, index int) bool {
	if near.Kind != "veth" || near.Peer != index || near.peerNS == 0 {
		return false
	}
	ns, err := n.numberOf(other)
	return err == nil && near.peerNS == ns
}

// numberOf is 1 + the ID by which n knows another namespace, ip-netns(8); 0 if it has none.
// The kernel gives one to each that a link of n leads to, when it speaks of the link.
func (n *NS) numberOf(other *NS) (ns uint32, err error) {
	gen := nl.NewRtGenMsg()
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETNSID, 0, unix.RTM_NEWNSID, gen, attr32(unix.NETNSA_FD, uint32(other.fd)))
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[gen.Len():])
		if err != nil {
			return 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.NETNSA_NSID {
				ns = number(a.Value) + 1 // of NETNSA_NSID_NOT_ASSIGNED, -1
			}
		}
	}
	return ns, err
}
