// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestForeignSender checks that only the kernel can send to a socket of a namespace.
func TestForeignSender(t *testing.T) {
	n, err := Node()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	s, err := n.openNetlink(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	at, err := unix.Getsockname(s.fd)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(foreign)
	forged := encodeMessage(unix.NLMSG_DONE, 0, 1, linkMessage(), nil)
	if err := unix.Sendto(foreign, forged, 0, at); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a forged answer: %v, want %v", err, unix.ECONNREFUSED)
	}
}
