// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Paused lists IPv4 objects with a new socket. It calls pause after the kernel has written the first part of the list.
func (n *NS) Paused(typ int, answer uint16, pause func() error) ([][]byte, error) {
	s, err := n.openNetlink(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer s.close()
	msg := &nl.RtMsg{} // RtMsg has the length and the first field of struct ndmsg
	msg.Family = unix.AF_INET
	if err = errors.Join(s.sendRequest(typ, unix.NLM_F_DUMP, msg, nil), pause()); err != nil {
		return nil, err
	}
	return s.readAnswers(typ, answer, false)
}

// ParseRules reads the kernel's messages about rules.
func ParseRules(msgs [][]byte) (all []Rule) {
	for _, m := range msgs {
		all = append(all, parseRule(m))
	}
	return all
}
