// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// FarEnd returns the other end of a veth pair. near is the end in this namespace. The other end may be in any
// namespace: the kernel has an ID for that namespace, ip-netns(8). The error is fs.ErrNotExist if the other end was
// moved or deleted after near was read.
func (n *NS) FarEnd(near Link) (Link, error) {
	msg := linkMessage()
	msg.Index = int32(near.Peer)
	attrs := []attribute{skipStats()}
	if near.peerNS != 0 {
		attrs = append(attrs, attr32(unix.IFLA_TARGET_NETNSID, near.peerNS-1))
	}
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, msg, attrs...)
	if errors.Is(err, unix.EINVAL) || err == nil && len(msgs) != 1 {
		err = absence{unix.ENODEV} // EINVAL: no namespace has the ID
	}
	if err != nil {
		return Link{}, fmt.Errorf("%s: find the other end of %s: %w", n.Name, near.Name, err)
	}
	return parseLink(msgs[0]), nil
}
