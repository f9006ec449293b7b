// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestSlaves finds the slaves of the node's cards in all namespaces, with their addresses. It ignores slaves of a pod's
// own link, even if this link has the card's MAC address.
func TestSlaves(t *testing.T) {
	nltest.Need(t, "root", "netns", "ipvlan")
	node, _ := nltest.NS(t, "node")
	pod, _ := nltest.NS(t, "pod")
	own, _ := nltest.NS(t, "own")
	world, _ := nltest.NS(t, "world")
	const mac = "02:00:00:00:00:aa"
	addr, ofLo := netip.MustParsePrefix("192.0.2.7/32"), netip.MustParseAddr("192.0.2.8")
	card := nl.Veth{Name: "ens5", MAC: mac, Peer: "far", PeerNS: world}
	must(t, card.Add(node))
	must(t, nl.IPVlan{Name: "eth0", Master: "ens5", NS: pod}.Add(node))
	if found, err := own.Slaves(node); err != nil || len(found) > 0 {
		t.Errorf("slaves of a namespace without any: %+v, %v", found, err)
	}
	must(t, nl.Addr{Prefix: addr, Dev: "eth0"}.Add(pod))
	must(t, nl.Addr{Prefix: netip.PrefixFrom(ofLo, 32), Dev: "lo"}.Add(pod))
	master, err := node.LinkByName("ens5")
	must(t, err)
	found, err := pod.Slaves(node)
	if err != nil || len(found) != 1 || found[0].Peer != master.Index ||
		!slices.Contains(found[0].Addrs, addr.Addr()) || slices.Contains(found[0].Addrs, ofLo) {
		t.Errorf("slaves of a pod: %v, %v; want one of link %d with %s", found, err, master.Index, addr.Addr())
	}
	// The pod has a link with the card's MAC address, and a slave of this link. Because of the pair to the node, the
	// kernel gives the pod's namespace a number.
	must(t, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: own}.Add(node))
	must(t, nl.Veth{Name: "ens5", MAC: mac, Peer: "far2", PeerNS: world}.Add(own))
	must(t, nl.Addr{Prefix: addr, Dev: "ens5"}.Add(own))
	further, _ := nltest.NS(t, "further")
	must(t, nl.IPVlan{Name: "eth0", Master: "ens5", NS: further}.Add(own))
	must(t, nl.Addr{Prefix: addr, Dev: "eth0"}.Add(further))
	for _, ns := range []*nl.NS{own, further, world} {
		if found, err := ns.Slaves(node); err != nil || len(found) > 0 {
			t.Errorf("slaves of a namespace with links of its own: %+v, %v", found, err)
		}
	}
	if found, err := node.Slaves(pod); err != nil || len(found) > 0 {
		t.Errorf("slaves of the node in the pod's namespace: %+v, %v", found, err)
	}
}
