// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// TestStaleRoute: a new pod has the address of an older pod that was never deleted. The node has routes only to the new
// pod. A late DEL of the older pod does not change the new pod.
func TestStaleRoute(t *testing.T) {
	f, p := preparedTable(t)
	must(t, f.ADD(p))
	heir := *p
	heir.NS, heir.request.NetNS = nltest.NS(t, "heir")
	heir.request.ContainerID = "heir"
	f.add(f.router, nl.Veth{Name: "heir", Peer: "eth0", PeerNS: heir.NS})
	must(t, f.ADD(&heir))
	routes, err := f.node.Routes(nl.RouteFilter{Table: 254, Protocol: nl.RouteProtocol})
	must(t, err)
	others := func(r nl.Route) bool { return r.Dev != heir.result.Interfaces[1].Name }
	if len(routes) != 2 || slices.ContainsFunc(routes, others) {
		t.Errorf("want the heir's route and its spare one alone: %v", routes)
	}
	must(t, f.DEL(p))
	must(t, f.CHECK(&heir))
}

// TestStaleLoopless: a pod without a loop was never deleted, and a new pod has its address. All packets to the address
// must reach the new pod.
func TestStaleLoopless(t *testing.T) {
	for _, loop := range []string{"redirect", "none"} {
		f := newFabric(t)
		f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
		serve(t, f.other, ":8080")
		p := f.configured(f.pod("pod1", pod1Addr, dual), func(c *ptp.Config) { atNode(c); c.ServiceLoop = "none" })
		must(t, f.ADD(p))
		// two slaves of an ENI cannot have one address
		must(t, p.NS.Do(func() error { return exec.Command("ip", "link", "del", "eth0").Run() }))
		heir := f.configured(f.pod("heir", pod1Addr, dual), func(c *ptp.Config) { atNode(c); c.ServiceLoop = loop })
		must(t, f.ADD(heir))
		serve(t, heir.NS, ":8082")
		for _, network := range []string{"tcp4", "tcp6"} {
			if _, err := call(f.other, network, dialled(network, nodeAddr+":30082")); err != nil {
				t.Errorf("%s: it is not called at a NodePort: %v", loop, err)
			}
			seen, err := call(heir.NS, network, dialled(network, "172.20.0.10:80"))
			if want := seenAs(network, heir.asCaller()); err != nil || seen != want {
				t.Errorf("%s: a service sees %q, want %q; %v", loop, seen, want, err)
			}
		}
		must(t, f.DEL(p))
		must(t, f.CHECK(heir))
	}
}
