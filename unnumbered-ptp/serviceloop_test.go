// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// Addresses of the tests' pods: two on one ENI, one on another.
const pod1Addr, pod2Addr, pod3Addr = "10.0.1.50", "10.0.1.51", "10.0.3.50"

// services maps each ClusterIP to its backend.
var services = map[string]string{
	"172.20.0.10": otherAddr + ":8080",
	"172.20.0.11": pod2Addr + ":8080",
	"172.20.0.12": pod1Addr + ":8080",
	"172.20.0.13": nodeAddr + ":8080",
	"172.20.0.14": pod3Addr + ":8080",
	"172.20.0.15": pod2Addr + ":50000",
	"172.20.0.16": otherAddr + ":8081", // counts bytes: see drain
	"172.20.0.17": pod2Addr + ":50001",
	"172.20.0.18": otherAddr + ":8080",
}

// clusterIP6 returns the IPv6 ClusterIP that belongs to an IPv4 ClusterIP.
func clusterIP6(addr string) string { return "fd77::" + addr[len("172.20.0."):] }

// dialled returns the address and port to dial in a network such as tcp6, given those of IPv4.
func dialled(network, addrport string) string {
	if network[3] == '4' {
		return addrport
	}
	addr, port, _ := net.SplitHostPort(addrport)
	return net.JoinHostPort(seenAs(network, addr), port)
}

func seenAs(network, addr string) string {
	switch {
	case network[3] == '4':
		return addr
	case addr[:3] == "172":
		return clusterIP6(addr)
	case addr == internet:
		return internet6
	}
	return sixth(addr)
}

const internet6 = "2001:db8::1"

// kubeProxy returns the rules of kube-proxy on a node for the services, and for NodePorts.
func kubeProxy(network string) nl.Table {
	family, bits := "ip", 32
	if network[3] == '6' {
		family, bits = "ip6", 128
	}
	var rules []nl.NFRule
	translate := func(addr string, port uint16, backend string) {
		dst := netip.PrefixFrom(netip.MustParseAddr(seenAs(network, addr)), bits)
		for _, proto := range []string{"tcp", "udp"} {
			rules = append(rules, nl.NFRule{nl.DAddr(dst), nl.DPort(proto, port, port),
				nl.DNAT(netip.MustParseAddrPort(dialled(network, backend)))})
		}
	}
	for vip, backend := range services {
		translate(vip, 80, backend)
	}
	translate(nodeAddr, 30080, pod1Addr+":8080")
	translate(nodeAddr, 30081, otherAddr+":8080")
	translate(nodeAddr, 30082, pod1Addr+":8082") // externalTrafficPolicy: Local
	translate(nodeAddr, 30083, pod1Addr+":8083")
	return nl.Table{Family: family, Name: "like_kube_proxy", Chains: []nl.Chain{
		{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100, Rules: rules},
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []nl.NFRule{
			{nl.DPort("tcp", 8082, 8083), nl.Accept()},
			{nl.DPort("udp", 8082, 8083), nl.Accept()},
			{nl.CTStatusDNAT(), nl.Masquerade()}, // for --masquerade-all, and for externalTrafficPolicy Cluster
		}},
		{Name: "forward", Type: "filter", Hook: "forward", Rules: []nl.NFRule{{nl.CTState("invalid"), nl.Drop()}}},
	}}
}

// A scene is a fabric with three pods, and with servers on all machines and pods.
type scene struct {
	*fabric
	pods [3]*pod
}

// newScene makes a scene. The first of the loops is the service loop of pod1, and the second that of the other pods.
func newScene(t testing.TB, loops [2]string, sysctls ...nl.Sysctl) scene {
	return newSceneKeeping(t, false, loops, sysctls...)
}

// newSceneKeeping is newScene with a value for keepCaller.
func newSceneKeeping(t testing.TB, keepCaller bool, loops [2]string, sysctls ...nl.Sysctl) scene {
	s := scene{fabric: newFabric(t)}
	for _, o := range sysctls {
		s.add(s.node, o)
	}
	s.add(s.router, nl.Addr{Prefix: netip.MustParsePrefix(internet6 + "/128"), Dev: "lo", NoDAD: true})
	s.add(s.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
	for i, addr := range []string{pod1Addr, pod2Addr, pod3Addr} {
		p := s.pod("pod"+addr[5:], addr, dual)
		p.request.Config.ServiceLoop, p.request.Config.KeepCaller = loops[min(i, 1)], keepCaller
		if err := s.ADD(p); err != nil {
			t.Fatal(err)
		}
		if err := s.CHECK(p); err != nil {
			t.Fatal(err)
		}
		s.add(p.NS, nl.Route{Dst: netip.MustParsePrefix("fd77::/64"), Via: netip.MustParseAddr(sixth(nodeAddr)),
			Dev: "eth1"})
		serve(t, p.NS, ":8080")
		serve(t, p.NS, ":50000")
		s.pods[i] = p
	}
	serve(t, s.node, ":8080")
	serve(t, s.other, ":8080")
	listen(t, s.other, ":8081", drain)
	serve(t, s.router, internet+":443")
	return s
}

// TestTraffic sends packets on each path, and checks the source that the receiver sees.
func TestTraffic(t *testing.T) {
	strict := []nl.Sysctl{{Key: "net/ipv4/conf/all/rp_filter", Value: "1"},
		{Key: "net/ipv4/conf/default/rp_filter", Value: "1"}}
	for name, c := range map[string]struct {
		loops   [2]string
		sysctls []nl.Sysctl
	}{
		"redirect":                   {loops: [2]string{"redirect", "redirect"}},
		"redirect, strict rp_filter": {[2]string{"redirect", "redirect"}, strict},
		"redirect, strictARP, loose rp_filter": {[2]string{"redirect", "redirect"}, []nl.Sysctl{
			{Key: "net/ipv4/conf/all/arp_ignore", Value: "1"}, {Key: "net/ipv4/conf/all/arp_announce", Value: "2"},
			{Key: "net/ipv4/conf/all/rp_filter", Value: "2"},
		}},
		"masquerade":                                        {loops: [2]string{"masquerade", "masquerade"}},
		"masquerade, strict rp_filter":                      {[2]string{"masquerade", "masquerade"}, strict},
		"redirect among pods that masquerade":               {loops: [2]string{"redirect", "masquerade"}},
		"masquerade among pods that redirect":               {loops: [2]string{"masquerade", "redirect"}},
		"none, strict rp_filter":                            {[2]string{"none", "none"}, strict},
		"none among pods that masquerade, strict rp_filter": {[2]string{"none", "masquerade"}, strict},
		"none among pods that redirect, strict rp_filter":   {[2]string{"none", "redirect"}, strict},
	} {
		t.Run(name, func(t *testing.T) { traffic(t, newScene(t, c.loops, c.sysctls...)) })
	}
}

// asCaller returns the source that a Service's backend sees when p calls: the backend is on another host, or in one of
// these pods.
func (p *pod) asCaller(backends ...*pod) string {
	for _, b := range append(backends, p) {
		if b.request.Config.ServiceLoop == "none" {
			return nodeAddr
		}
	}
	return p.request.Prev.IPs[0].Address.IP.String()
}

func traffic(t *testing.T, s scene) {
	pod1, pod2, pod3 := s.pods[0].NS, s.pods[1].NS, s.pods[2].NS
	p1, p2, p3 := s.pods[0], s.pods[1], s.pods[2]
	for _, c := range []struct {
		name     string
		from     *nl.NS
		to, seen string
	}{
		{"pod to other host", pod1, otherAddr + ":8080", pod1Addr},
		{"other host to pod", s.other, pod1Addr + ":8080", otherAddr},
		{"other host to a port of the loop's", s.other, pod1Addr + ":50000", otherAddr},
		{"pod to sibling", pod1, pod2Addr + ":8080", pod1Addr},
		{"pod to a port of the loop's", pod1, pod2Addr + ":50000", pod1Addr},
		{"pod to another ENI", pod1, pod3Addr + ":8080", pod1Addr},
		{"pod to node", pod1, nodeAddr + ":8080", pod1Addr},
		{"node to pod", s.node, pod1Addr + ":8080", nodeAddr},
		{"node to a port of the loop's", s.node, pod1Addr + ":50000", nodeAddr},
		{"pod to internet", pod1, internet + ":443", nodeAddr},
		{"service on other host", pod1, "172.20.0.10:80", p1.asCaller()},
		{"service on sibling", pod1, "172.20.0.11:80", p1.asCaller(p2)},
		{"service on sibling, back", pod2, "172.20.0.12:80", p2.asCaller(p1)},
		{"service on itself", pod1, "172.20.0.12:80", nodeAddr},
		{"service on node", pod1, "172.20.0.13:80", pod1Addr},
		{"service on another ENI", pod1, "172.20.0.14:80", p1.asCaller(p3)},
		{"service on another ENI, back", pod3, "172.20.0.12:80", p3.asCaller(p1)},
		{"service on a port of the loop's", pod1, "172.20.0.15:80", p1.asCaller(p2)},
		{"NodePort from a pod", pod1, nodeAddr + ":30081", p1.asCaller()},
		{"NodePort from VPC", s.other, nodeAddr + ":30080", nodeAddr},
		{"NodePort from internet", s.router, nodeAddr + ":30080", nodeAddr},
	} {
		for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
			if c.to[:3] == "198" && network[3] == '6' {
				continue // the internet cannot answer IPv6 addresses of the fabric
			}
			seen, err := call(c.from, network, dialled(network, c.to))
			if want := seenAs(network, c.seen); err != nil || seen != want {
				t.Errorf("%s (%s): seen as %q, want %q; %v", c.name, network, seen, want, err)
			}
		}
	}
}
