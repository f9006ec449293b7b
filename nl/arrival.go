// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ErrSource reports that the kernel drops a packet because of its source: the way back is by another link (rp_filter).
var ErrSource = errors.New("the way back to its source is not by the link on which it arrived")

// Forwards is the link by which the namespace forwards a packet that arrives by the link iif, by all rules and tables.
// It is "" if the kernel forwards no such packet. The command for this is "ip route get TO from FROM iif IIF". The
// packet has no mark here.
func (n *NS) Forwards(iif string, from, to netip.Addr) (dev string, err error) {
	index, err := n.index(iif)
	if err != nil {
		return "", err
	}
	r, err := n.lookup(0, from, to, attr32(unix.RTA_IIF, uint32(index)))
	// Linux from 6.14 on answers with EINVAL, for all reasons to drop a packet whose addresses are usual ones.
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) {
		return "", ErrSource
	}
	if err != nil {
		return "", err
	}
	return n.nameOf(r.index)
}

// Answered reports whether a host has answered the question for its MAC address by a link, ARP or a neighbour
// solicitation.
func (n *NS) Answered(dev string, a netip.Addr) (bool, error) {
	index, err := n.index(dev)
	if err != nil {
		return false, err
	}
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETNEIGH, 0, unix.RTM_NEWNEIGH,
		&neighMessage{Family: uint8(FamilyOf(a)), Ifindex: int32(index)}, attrAddr(unix.NDA_DST, a))
	if err != nil || len(msgs) == 0 {
		return false, nil // no process has asked yet
	}
	mac, state, err := parseNeigh(msgs[0])
	const valid = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT
	return mac != "" && state&valid != 0, err
}
