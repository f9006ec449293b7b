// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestQueues: each end of a pair asks for one queue in each direction. Otherwise, the number of queues would depend on
// the machine's CPUs.
func TestQueues(t *testing.T) {
	attrs, err := Veth{Name: "near", Peer: "far", PeerNS: &NS{}}.attrs()
	if err != nil {
		t.Fatal(err)
	}
	near := slices.Concat(attrs...)
	info := attrIn(t, near, unix.IFLA_LINKINFO)
	peer := attrIn(t, attrIn(t, info, nl.IFLA_INFO_DATA), nl.VETH_INFO_PEER)
	for end, attrs := range map[string][]byte{"near": near, "far": peer[unix.SizeofIfInfomsg:]} {
		for _, typ := range []uint16{unix.IFLA_NUM_TX_QUEUES, unix.IFLA_NUM_RX_QUEUES} {
			if n := nativeUint(attrIn(t, attrs, typ)); n != 1 {
				t.Errorf("the %s end has %d for attribute %d", end, n, typ)
			}
		}
	}
}

// attrIn returns the value of an attribute.
func attrIn(t *testing.T, attrs []byte, typ uint16) []byte {
	t.Helper()
	found, err := nl.ParseRouteAttr(attrs)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range found {
		if a.Attr.Type&^unix.NLA_F_NESTED == typ {
			return a.Value
		}
	}
	t.Fatalf("there is no attribute %d", typ)
	return nil
}
