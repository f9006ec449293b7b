// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// kubeProxy is what kube-proxy has on a node for one ClusterIP each with a backend
// in the VPC, on a sibling, and on the pod itself, and for a NodePort of that pod.
func kubeProxy() nl.Table {
	service := func(vip string, port uint16, backend string) (rules []nl.NFRule) {
		for _, proto := range []string{"tcp", "udp"} {
			rules = append(rules, nl.NFRule{nl.DAddr(netip.MustParsePrefix(vip + "/32")), nl.DPort(proto, port, port), nl.DNAT(netip.MustParseAddrPort(backend))})
		}
		return rules
	}
	var rules []nl.NFRule
	rules = append(rules, service("172.20.0.10", 80, otherAddr+":8080")...)
	rules = append(rules, service("172.20.0.11", 80, "10.0.1.51:8080")...)
	rules = append(rules, service("172.20.0.12", 80, "10.0.1.50:8080")...)
	rules = append(rules, service("172.20.0.13", 80, nodeAddr+":8080")...)
	rules = append(rules, service(nodeAddr, 30080, "10.0.1.50:8080")...)
	return nl.Table{Family: "ip", Name: "like_kube_proxy", Chains: []nl.Chain{
		{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100, Rules: rules},
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []nl.NFRule{
			{nl.IIFName("eth0"), nl.CTStatusDNAT(), nl.Masquerade()}, // externalTrafficPolicy: Cluster
		}},
	}}
}

// TestTraffic sends real packets every way there is and asks who was seen to send them.
func TestTraffic(t *testing.T) {
	for name, sysctls := range map[string][]nl.Sysctl{
		"defaults":         nil,
		"strict rp_filter": {{Key: "net/ipv4/conf/all/rp_filter", Value: "1"}, {Key: "net/ipv4/conf/default/rp_filter", Value: "1"}},
		"loose rp_filter":  {{Key: "net/ipv4/conf/all/rp_filter", Value: "2"}},
		"strictARP":        {{Key: "net/ipv4/conf/all/arp_ignore", Value: "1"}, {Key: "net/ipv4/conf/all/arp_announce", Value: "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			for _, s := range sysctls {
				f.add(f.node, s)
			}
			f.add(f.node, kubeProxy())
			pod1, pod2 := f.pod("pod1", "10.0.1.50"), f.pod("pod2", "10.0.1.51")
			for _, p := range []*pod{pod1, pod2} {
				if err := f.ADD(p); err != nil {
					t.Fatal(err)
				}
				serve(t, p.NS, ":8080")
			}
			serve(t, f.node, ":8080")
			serve(t, f.other, ":8080")
			serve(t, f.router, internet+":443")
			traffic(t, f, pod1, pod2)
		})
	}
}

func traffic(t *testing.T, f *fabric, pod1, pod2 *pod) {
	for _, c := range []struct {
		name     string
		from     *nl.NS
		to, seen string
	}{
		{"pod to other host", pod1.NS, otherAddr + ":8080", "10.0.1.50"},
		{"other host to pod", f.other, "10.0.1.50:8080", otherAddr},
		{"pod to sibling", pod1.NS, "10.0.1.51:8080", "10.0.1.50"},
		{"pod to node", pod1.NS, nodeAddr + ":8080", "10.0.1.50"},
		{"node to pod", f.node, "10.0.1.50:8080", nodeAddr},
		{"pod to internet", pod1.NS, internet + ":443", nodeAddr},
		{"service on other host", pod1.NS, "172.20.0.10:80", "10.0.1.50"},
		{"service on sibling", pod1.NS, "172.20.0.11:80", "10.0.1.50"},
		{"service on sibling, back", pod2.NS, "172.20.0.12:80", "10.0.1.51"},
		{"service on itself", pod1.NS, "172.20.0.12:80", nodeAddr},
		{"service on node", pod1.NS, "172.20.0.13:80", "10.0.1.50"},
		{"NodePort from VPC", f.other, nodeAddr + ":30080", nodeAddr},
		{"NodePort from internet", f.router, nodeAddr + ":30080", nodeAddr},
	} {
		for _, network := range []string{"tcp4", "udp4"} {
			if seen, err := call(c.from, network, c.to); err != nil || seen != c.seen {
				t.Errorf("%s (%s): seen as %q, want %q; %v", c.name, network, seen, c.seen, err)
			}
		}
	}
}
