// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// FarEnd returns the other end of a veth pair, in whichever namespace it is. The argument nearEnd is the end in the
// namespace n. The error is fs.ErrNotExist if the other end was moved or deleted after nearEnd was read.
func (n *NS) FarEnd(nearEnd Link) (Link, error) {
	msg := linkMessage()
	msg.Index = int32(nearEnd.Peer)
	attrs := []attribute{skipStats()}
	if nearEnd.peerNS != 0 {
		attrs = append(attrs, attr32(unix.IFLA_TARGET_NETNSID, nearEnd.peerNS-1))
	}
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, msg, attrs...)
	if errors.Is(err, unix.EINVAL) || err == nil && len(msgs) != 1 {
		err = notExistError{unix.ENODEV} // EINVAL: no namespace has this ID
	}
	if err != nil {
		return Link{}, fmt.Errorf("%s: find the other end of %s: %w", n.Name, nearEnd.Name, err)
	}
	return parseLink(msgs[0]), nil
}
