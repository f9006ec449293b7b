// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// shipped returns the changes of the plugin with the shipped configuration, on a node with IPv4 and IPv6. The result
// once has the changes of the first ADD, and pod those of each pod's ADD.
func shipped(t *testing.T) (once, pod nl.Wiring) {
	const config = `{"hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true}`
	r := asked(t, config, []string{"100.64.0.5/19", "2600:1f18:0:1::5/64"},
		[]string{"10.0.0.0/16", "100.64.0.0/16", "::/0"})
	s := newScene(r)
	s.node = node{mtu: 9001, acceptRA: true, limitsRefusals: true, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.10"),
		netip.MustParseAddr("2600:1f18::10")}}
	p := newPair(s)
	p.loop = r.Config.loopsOfNewPod()[0]
	pod = append(nl.Wiring{{NS: s.nodeNS, Object: p.veth}}, s.wiring(p, s.node, tableOfIndex(r.Config.start, 7))...)
	return nodeWiring(s.request, s.node), pod
}

// TestDocs compares a section of docs/node.md with the wiring. Each sysctl must have a reason in this section.
func TestDocs(t *testing.T) {
	const file = "../docs/node.md"
	once, pod := shipped(t)
	want := fmt.Sprintf("The ADD of the node's first pod makes these changes. If another program undoes "+
		"one of them, a later ADD makes this change again:\n\n```\n%s```\n\n"+
		"For each pod, here 100.64.0.5 and 2600:1f18:0:1::5:\n\n```\n%s```\n", once, pod)
	after := nltest.Section(t, file, "go test ./unnumbered-ptp -run TestDocs -update", want, *update)
	for _, s := range append(once, pod...) {
		k, is := s.Object.(nl.Sysctl)
		if !is {
			continue
		}
		name := strings.TrimPrefix(k.String(), "sysctl -w ")
		name = strings.ReplaceAll(name, pod[0].Object.(nl.Veth).Name, "veth*")
		if !strings.Contains(after, "| `"+name+"` |") {
			t.Errorf("%s: no reason for %s", file, name)
		}
	}
}

// TestDocsRouted compares the section of docs/node.md about routed pods with the wiring.
func TestDocsRouted(t *testing.T) {
	const file = "../docs/node.md"
	r := asked(t, `{"hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true}`,
		[]string{"100.64.0.5/32", "2600:1f18:0:1::5/128"}, []string{"10.0.0.0/16", "100.64.0.0/16", "::/0"})
	s := routedScene(r, 4)
	s.node = node{mtu: 9001, acceptRA: true, limitsRefusals: true, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.10"),
		netip.MustParseAddr("2600:1f18::10")}}
	p := newPair(s)
	pod := append(nl.Wiring{{NS: s.nodeNS, Object: p.veth}}, s.routedPodWiring(p, s.node)...)
	want := fmt.Sprintf("What the routed pods of an ENI share:\n\n```\n%s```\n\n"+
		"For each routed pod, here 100.64.0.5 and 2600:1f18:0:1::5:\n\n```\n%s```\n", s.eniWiring(p), pod)
	nltest.Section(t, file, "go test ./unnumbered-ptp -run TestDocsRouted -update", want, *update)
}

// routedScene returns the scene of a routed pod's ADD. The argument index is that of the ENI's link.
func routedScene(r *plugin.Request[Config], index int) *scene {
	r.Prev.Interfaces = []*types100.Interface{{Name: "ens6"}, {Name: "eth0", Sandbox: r.NetNS}}
	for _, ip := range r.Prev.IPs {
		ip.Interface = new(1)
	}
	r.Prev.IPs = append(r.Prev.IPs, &types100.IPConfig{Interface: new(0), Address: cidr("100.64.0.4/19")})
	s := newScene(r)
	s.eni = nl.Link{Name: "ens6", Index: index, MTU: 9001}
	return s
}
