// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestOlderHook: where somebody else has a qdisc "ingress", filters for what comes in are
// at home, and those for what goes out are refused: the kernel would take them for what
// comes in.
func TestOlderHook(t *testing.T) {
	host, pod := two(t)
	links := nl.Wiring{{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}}, {host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}}}
	if err := links.Add(); err != nil {
		t.Fatal(err)
	}
	for _, dev := range forbidden.Devs {
		if err := older(pod, dev); err != nil {
			t.Fatal(err)
		}
	}
	splice := nl.Wiring{{pod, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}}}
	if err := errors.Join(splice.Add(), splice.Check()); err != nil {
		t.Fatal(err)
	}
	if err := (nl.Wiring{{pod, forbidden}}).Add(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Add of what goes out: %v", err)
	}
	if err := splice.Check(); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// older gives a link a qdisc "ingress".
func older(n *nl.NS, dev string) error {
	l, err := n.LinkByName(dev)
	if err != nil {
		return err
	}
	return n.Do(func() error {
		return netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: l.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
		}})
	})
}
