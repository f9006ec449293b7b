// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestENIWithoutLink: the node loses the link of an ENI that a pod uses. The next pod gets an address of the other ENI,
// and ADD does not execute the program ipam. When the other ENI has no free address, ADD needs this program, and fails
// because there is none. When the link is back, a pod gets an address of the first ENI.
func TestENIWithoutLink(t *testing.T) {
	n := newNode(t)
	t.Setenv("CNI_PATH", "/nonexistent")
	second := netip.MustParseAddr("10.0.2.20")
	n.must(nl.Wiring{{NS: n.ns, Object: nl.Veth{Name: "ens7", MAC: "0a:00:00:00:00:03", Peer: "eni2", PeerNS: n.vpc,
		MTU: 9001}}}.Add())
	n.must(n.registry().Change(t.Context(), func(s *registry.State) {
		s.ENIs["eni-3"] = registry.ENI{MAC: "0a:00:00:00:00:03", Index: 2, CIDR: netip.MustParsePrefix("10.0.2.0/24"),
			VPC:     "vpc-1",
			Serving: true, Managed: true, Addrs: []netip.Addr{second}}
		s.Free.Set(second, time.Time{})
	}))
	pod := func(id string) *plugin.Request[Config] {
		_, path := nltest.NS(t, id)
		r := n.request(path, "")
		r.ContainerID = id
		return r
	}
	_, err := n.ADD(pod("first"))
	n.must(err)
	n.must(nl.Wiring{{NS: n.ns, Object: nl.Veth{Name: "ens6", Peer: "eni1", PeerNS: n.vpc}}}.Del())
	result, err := n.ADD(pod("second"))
	n.must(err)
	if got, _ := plugin.Addr(result.IPs[0].Address.IP); got != second {
		t.Errorf("the pod has %s, want %s", got, second)
	}
	if _, err := n.ADD(pod("third")); err == nil {
		t.Error("a third pod has an address")
	}
	s, err := n.registry().View()
	n.must(err)
	if s.Leases.Len() != 2 || lease.Ready(s, "", time.Now()) != 0 {
		t.Errorf("%d leases, %d addresses are ready", s.Leases.Len(), lease.Ready(s, "", time.Now()))
	}
	n.must(nl.Wiring{{NS: n.ns, Object: nl.Veth{Name: "ens8", MAC: eniMAC, Peer: "eni1", PeerNS: n.vpc,
		MTU: 9001}}}.Add())
	_, err = n.ADD(pod("fourth"))
	n.must(err)
}
