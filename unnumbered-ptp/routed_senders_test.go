// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// open switches off the kernel's checks of IPv4 sources on the node, so that only our rules drop packets, as with IPv6.
func (f *fabric) open(pods ...*pod) {
	f.t.Helper()
	var links []string
	for _, p := range pods {
		links = append(links, p.veth())
	}
	f.add(f.node, unchecked(append(links, "eth0", "eth1", "eth2")...)...)
}

// TestRoutedSender: a routed pod sends packets with the source of another pod. The packets go to pods of the node, to
// the VPC, to the internet, and to NodePorts with such backends. No packet arrives, and the chain senders counts each
// connection. Packets with the pod's own source arrive, even if other routing rules (ip rule from) name the addresses
// of these pods.
func TestRoutedSender(t *testing.T) {
	f := newFabric(t)
	f.add(f.router, nl.Addr{Prefix: netip.MustParsePrefix(internet6 + "/128"), Dev: "lo", NoDAD: true})
	pods := f.routedPods(dual)
	p := pods[0]
	f.open(pods...)
	iproute(t, f.node, fromRules(pod2Addr, pod3Addr, otherAddr))
	for _, network := range []string{"udp4", "udp6"} {
		f.add(f.node, nodePorts(network, pod2Addr, otherAddr))
	}
	forged := 0
	for _, network := range []string{"udp4", "udp6"} {
		for to, at := range map[string]*nl.NS{pod2Addr + ":8080": pods[1].NS, pod3Addr + ":8080": pods[2].NS,
			otherAddr + ":8080": f.other, internet + ":8080": f.router,
			nodeAddr + ":30080": pods[1].NS, nodeAddr + ":30081": f.other} {
			if at == f.router && network == "udp6" {
				continue // the fabric's source check ignores destinations that only the router has
			}
			server := bind(t, at, network, ":8080")
			for _, sender := range []string{pod2Addr, pod3Addr, "10.0.1.60", otherAddr, nodeAddr} {
				if strings.HasPrefix(to, sender+":") {
					continue
				}
				bind(t, p.NS, network, dialled(network, sender+":0"), transparent(network)).send(sender, to)
				forged++
			}
			bind(t, p.NS, network, dialled(network, pod1Addr+":0"), transparent(network)).send(pod1Addr, to)
			if got := server.next(); got != pod1Addr {
				t.Errorf("%s: %s got a message in the name of %s", network, to, got)
			}
			server.Close()
		}
	}
	counted, err := nl.Table{Family: "inet", Name: "cni_ipvlan_vpc_k8s._routed.net"}.Counters(f.node)
	must(t, err)
	dropped := 0
	for _, c := range counted {
		if c.Chain == "senders" {
			dropped += int(c.Packets)
		}
	}
	const ofNode = 7 // the kernel itself drops packets with the node's own source
	if dropped < forged-ofNode {
		t.Errorf("of %d forged packets, the chain senders has counted %d", forged, dropped)
	}
}

// TestRoutedMark: a routed pod marks its packets with the number of another ENI, and with the mark of NodePorts. The
// packets still leave through the pod's own ENI, with the pod's own address.
func TestRoutedMark(t *testing.T) {
	f := newFabric(t)
	pods := f.routedPods(dual)
	f.open(pods...)
	counters := nl.Table{Family: "inet", Name: "seen", Chains: []nl.Chain{{Name: "own", Type: "filter",
		Hook: "prerouting", Priority: -310, Rules: []nl.NFRule{
			{nl.IIFName("eni1"), nl.DPort("udp", 9999, 9999), nl.Count()}}},
		{Name: "wrong", Type: "filter", Hook: "prerouting", Priority: -309, Rules: []nl.NFRule{
			{nl.IIFName("eni3"), nl.DPort("udp", 9999, 9999), nl.Count()},
			{nl.IIFName("eni0"), nl.DPort("udp", 9999, 9999), nl.Count()}}}}}
	f.add(f.router, counters)
	server := bind(t, f.other, "udp4", ":9999")
	sent := 0
	for mark := range 258 {
		option := func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark<<5)
		}
		bind(t, pods[0].NS, "udp4", ":0", option).send("marked", otherAddr+":9999")
		must(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
		_, from, err := server.ReadFrom(make([]byte, 10))
		must(t, err)
		if seen := from.(*net.UDPAddr).IP.String(); seen != pod1Addr {
			t.Errorf("with the mark %#x the pod is seen as %s", mark<<5, seen)
		}
		sent++
	}
	counted, err := counters.Counters(f.router)
	must(t, err)
	for _, c := range counted {
		if want := map[string]uint64{"own": uint64(sent)}[c.Chain]; uint64(c.Packets) != want {
			t.Errorf("the chain %s has counted %d packets, want %d", c.Chain, c.Packets, want)
		}
	}
}

// TestRoutedNextHop: a routed pod takes the addresses of its next hops and of the ENI's link, and answers ARP requests
// for other addresses. The node and the other pods ignore its claims.
func TestRoutedNextHop(t *testing.T) {
	f := newFabric(t)
	pods := f.routedPods(dual)
	f.open(pods...)
	serve(t, pods[1].NS, ":8080")
	serve(t, f.other, ":8080")
	nltest.Shell(t, pods[0].NS, "ip addr add 169.254.1.1/32 dev lo; ip addr add 169.254.72.2/32 dev lo; "+
		"ip addr add 10.0.1.1/32 dev eth0; ip addr add 10.0.1.51/32 dev eth0; ip addr add 10.0.9.1/32 dev eth0; "+
		"sysctl -qw net.ipv4.conf.all.proxy_arp=1 net.ipv4.conf.eth0.proxy_arp=1 net.ipv4.conf.all.arp_ignore=0")
	nltest.Shell(t, pods[0].NS, "command -v arping >/dev/null && arping -c 2 -U -I eth0 10.0.1.51 || true")
	for _, from := range []*nl.NS{pods[1].NS, pods[2].NS} {
		if _, err := call(from, "tcp4", otherAddr+":8080"); err != nil {
			t.Errorf("%s: %v", from.Name, err)
		}
	}
	for from, want := range map[*nl.NS]string{f.node: nodeAddr, f.other: otherAddr, pods[2].NS: pod3Addr} {
		if seen, err := call(from, "tcp4", pod2Addr+":8080"); err != nil || seen != want {
			t.Errorf("%s to the sibling: seen as %q; %v", from.Name, seen, err)
		}
	}
	for _, p := range pods[1:] {
		must(t, f.CHECK(p))
	}
}

// TestRoutedMarked: some programs look up a packet's way back with the packet's mark. This lookup must find the pods
// and the ENIs. If src_valid_mark is set, the kernel's check of sources does such a lookup. wg-quick sets
// src_valid_mark. The IPv6 rule of firewalld also does such a lookup, and the test adds this rule for both families.
func TestRoutedMarked(t *testing.T) {
	f := newFabric(t)
	pods := f.routedPods(dual)
	f.add(f.node, nl.Sysctl{Key: "net/ipv4/conf/all/src_valid_mark", Value: "1"})
	for _, p := range pods {
		f.add(f.node, nl.Sysctl{Key: "net/ipv4/conf/" + p.veth() + "/rp_filter", Value: "1"})
	}
	for _, n := range []*nl.NS{f.node, f.other} {
		serve(t, n, ":8080")
	}
	reach := func(when string) {
		t.Helper()
		for _, p := range pods {
			for _, to := range []string{nodeAddr, otherAddr} {
				for _, network := range []string{"tcp4", "tcp6"} {
					seen, err := call(p.NS, network, dialled(network, to+":8080"))
					if err != nil || seen != seenAs(network, p.addr) {
						t.Errorf("%s: %s to %s (%s): seen as %q; %v", when, p.addr, to, network, seen, err)
					}
				}
			}
		}
	}
	reach("the kernel's check")
	nltest.Shell(t, f.node, "nft add table inet f; nft add chain inet f check '{ type filter hook prerouting "+
		"priority -140; }'; nft add rule inet f check meta nfproto '{ ipv4, ipv6 }' "+
		"fib saddr . mark . iif oif missing drop")
	reach("a firewall's check")
}
