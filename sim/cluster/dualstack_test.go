// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// dualStack checks two nodes whose pods have both families. On one of the nodes, EC2 delegates prefixes of both
// families. By each family, each pod reaches the pod of the other node, and the Service of this pod.
func (w *world) dualStack(t *testing.T) {
	keys := object{"ipFamilies": []string{"IPv4", "IPv6"}, "hostCidrs": []string{"fd00:20::/112"}}
	single := w.join(t, "single", cluster.NodeOptions{Conflist: edited(t, "dual-stack", keys), IPv6: 1})
	blocks := w.join(t, "blocks", cluster.NodeOptions{Conflist: edited(t, "prefixes", keys), IPv6: 1})
	w.apply(t, podOn("one", single.Name, server()), podOn("two", blocks.Name, server()),
		service("one", "one", "ipFamilyPolicy", "RequireDualStack"),
		service("two", "two", "ipFamilyPolicy", "RequireDualStack"))
	one, two := w.ready(t, "one", 1)[0], w.ready(t, "two", 1)[0]
	for _, ends := range [][2]pod{{one, two}, {two, one}} {
		from, to := ends[0], ends[1]
		if len(from.addrs) != 2 || !from.addrs[1].Is6() {
			t.Fatalf("%s has the addresses %s: want one of IPv4 and one of IPv6", from.name, from.addrs)
		}
		for family, a := range w.clusterIPs(t, to.name) {
			w.sees(t, from, "http", netip.AddrPortFrom(to.addrs[family], port), from.addrs[family])
			w.sees(t, from, "http", netip.AddrPortFrom(a, 80), from.addrs[family])
			w.sees(t, from, "udp", netip.AddrPortFrom(a, 81), from.addrs[family])
		}
	}
	within(t, blocks, two.addrs[0], func(e ec2sim.ENI) []netip.Prefix { return e.Prefixes })
	within(t, blocks, two.addrs[1], func(e ec2sim.ENI) []netip.Prefix { return e.IPv6Prefixes })
}

// clusterIPs returns the addresses of a Service, IPv4 first.
func (w *world) clusterIPs(t *testing.T, name string) []netip.Addr {
	t.Helper()
	var s struct {
		Spec struct{ ClusterIPs []netip.Addr }
	}
	w.read(t, &s, "service", name)
	if len(s.Spec.ClusterIPs) != 2 || !s.Spec.ClusterIPs[1].Is6() {
		t.Fatalf("the Service %s has the addresses %s: want one of IPv4 and one of IPv6", name, s.Spec.ClusterIPs)
	}
	return s.Spec.ClusterIPs
}

// within checks that an address is in one of the prefixes of the node's ENIs. The function "of" returns the prefixes of
// one ENI.
func within(t *testing.T, n *cluster.Node, a netip.Addr, of func(ec2sim.ENI) []netip.Prefix) {
	t.Helper()
	var all []netip.Prefix
	for _, e := range n.ENIs() {
		all = append(all, of(e)...)
	}
	if !slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) }) {
		t.Errorf("%s: a pod has the address %s, which is of none of the prefixes %s", n.Name, a, all)
	}
}
