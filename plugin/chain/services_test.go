// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"net"
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestEgressOfService: a Service has an endpoint in a destination. The node refuses its client's packets there, and no other pod's. Without
// the rule that does it, they would leave.
func TestEgressOfService(t *testing.T) {
	nltest.Need(t, "fou")
	const clusterIP = "172.20.0.99"
	n := newNode(t)
	service := nl.NFRule{nl.DAddr(netip.MustParsePrefix(clusterIP + "/32")), nl.L4Proto("udp"), nl.DNAT(partner)}
	n.must(nl.Wiring{
		{NS: n.vpc, Object: nl.Up{Dev: "eni0"}}, {NS: n.vpc, Object: nl.Addr{Prefix: netip.MustParsePrefix("10.0.0.1/24"), Dev: "eni0"}},
		{NS: n.ns, Object: nl.Route{Dst: netip.PrefixFrom(partner.Addr(), 32), Via: netip.MustParseAddr("10.0.0.1"), Dev: "eth0"}},
		{NS: n.ns, Object: nl.Table{Family: "ip", Name: "service", Chains: []nl.Chain{{Name: "before", Type: "nat", Hook: "prerouting", Priority: -100, Rules: []nl.NFRule{service}}}}},
	}.Add())
	v := victim{node: n}
	v.watch("10.0.1.20", "namespaces")
	send := func(pod *nl.NS) func() bool {
		var c net.Conn
		n.must(pod.Do(func() (err error) { c, err = net.Dial("udp", net.JoinHostPort(clusterIP, "9")); return err }))
		t.Cleanup(func() { _ = c.Close() })
		return func() (refused bool) {
			_, err := c.Write([]byte{0}) // an ICMP error about the one before
			return err != nil
		}
	}
	pod := func(container, namespace string) (*nl.NS, func()) {
		ns, path := nltest.NS(t, container)
		r := n.request(path, egressing("namespaces"))
		r.ContainerID, r.Pod.Namespace = container, namespace
		result, err := n.ADD(r)
		n.must(err)
		n.must(n.CHECK(r, result))
		return ns, func() { n.must(n.DEL(r)) }
	}
	client, end := pod("client", "default")
	defer end()
	sends := send(client)
	v.until("the node refuses a client's packet", sends)
	if seen := v.seen("wrong"); seen > 0 {
		t.Errorf("the partner has seen %d packets of a client by the Service", seen)
	}
	other, end := pod("other", "shop")
	defer end()
	sends = send(other)
	v.until("the partner sees another pod's packet", func() bool { sends(); return v.seen("wrong") > 0 })
	n.must(nl.Rule{Pref: 1025, Family: nl.IPv4}.Del(n.ns))
	before := v.seen("wrong")
	sends = send(client)
	v.until("the partner sees a client's packet without the rule", func() bool { sends(); return v.seen("wrong") > before })
}
