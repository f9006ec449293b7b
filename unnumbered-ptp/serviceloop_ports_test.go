// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

var redirects = [2]string{"redirect", "redirect"}

// TestManyConnections makes more connections to one backend than the pod has ports, one after the other. The server
// closes each connection, so the pod can use the port again at once. The server remembers the connection for a minute,
// and the node for two minutes. No connection may be refused, or need a second SYN.
func TestManyConnections(t *testing.T) {
	s := newScene(t, redirects)
	p := s.pods[0].NS
	const ports, connections = 500, 2000
	s.add(p, nl.Sysctl{Key: "net/ipv4/ip_local_port_range", Value: fmt.Sprintf("32768 %d", 32768+ports-1)})
	if err := p.Do(func() error {
		for i := range connections {
			if seen, err := exchange("tcp4", "172.20.0.10:80", 1); err != nil || seen != pod1Addr {
				return fmt.Errorf("connection %d: seen as %q; %v", i, seen, err)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if n := nltest.Tracked(t, s.node); n > ports {
		t.Errorf("the node tracks %d connections, more than the pod has ports", n)
	}
	var snmp []byte
	must(t, p.Do(func() (err error) { snmp, err = os.ReadFile("/proc/thread-self/net/snmp"); return err }))
	if again := counter(t, string(snmp), "Tcp:", "RetransSegs"); again > connections/100 {
		t.Errorf("%d segments were sent again", again)
	}
}

// counter reads a counter of /proc/net/snmp.
func counter(t *testing.T, snmp, group, name string) int {
	t.Helper()
	var names []string
	for line := range strings.Lines(snmp) {
		f := strings.Fields(line)
		if f[0] != group {
			continue
		}
		if i := slices.Index(names, name); i >= 0 {
			n, err := strconv.Atoi(f[i])
			must(t, err)
			return n
		}
		names = f
	}
	t.Fatalf("no counter %s %s", group, name)
	return 0
}

// TestEveryPort calls a Service from each port of the pod's range. The node still tracks all earlier connections, so
// each connection needs its own port of the loop.
func TestEveryPort(t *testing.T) {
	s := newScene(t, redirects, nl.Sysctl{Key: "net/netfilter/nf_conntrack_udp_timeout", Value: "600"})
	ask := func(port int) error {
		u, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
		if err != nil {
			return err
		}
		defer u.Close()
		u.SetDeadline(time.Now().Add(time.Minute))
		if _, err := u.WriteTo([]byte("?"), &net.UDPAddr{IP: net.IPv4(172, 20, 0, 10), Port: 80}); err != nil {
			return err
		}
		_, err = u.Read(make([]byte, 100))
		return err
	}
	if err := s.pods[0].Do(func() error {
		for port := 32768; port <= 49151; port += 13 {
			if err := ask(port); err != nil {
				return fmt.Errorf("from port %d: %w", port, err)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestTwoServices calls one backend through two Services, from the same port. The port may be outside of the pod's
// range.
func TestTwoServices(t *testing.T) {
	s := newScene(t, redirects)
	if err := s.pods[0].Do(func() error {
		for _, port := range []int{40000, 5353} {
			u, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
			if err != nil {
				return err
			}
			defer u.Close()
			u.SetDeadline(time.Now().Add(time.Minute))
			for _, vip := range []string{"172.20.0.10:80", "172.20.0.18:80", "172.20.0.10:80", otherAddr + ":8080"} {
				if _, err := u.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(vip))); err != nil {
					return err
				}
				if _, from, err := u.ReadFrom(make([]byte, 100)); err != nil || from.String() != vip {
					return fmt.Errorf("asked %s, answer from %v; %w", vip, from, err)
				}
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestOwnPorts: the pod's range of local ports includes ports of the loop. The pod must not use them.
func TestOwnPorts(t *testing.T) {
	s := newScene(t, redirects)
	p := s.pods[0]
	s.add(p.NS, nl.Sysctl{Key: "net/ipv4/ip_local_port_range", Value: "49148 49158"})
	if err := p.Do(func() error {
		var open []net.Listener
		defer func() {
			for _, l := range open {
				l.Close()
			}
		}()
		for {
			l, err := net.Listen("tcp4", ":0")
			if err != nil {
				if len(open) != 4 {
					return fmt.Errorf("%d ports of 4: %w", len(open), err)
				}
				return nil
			}
			open = append(open, l)
		}
	}); err != nil {
		t.Error(err)
	}
}

// TestChosenPorts: a runtime has set the pod's sysctls for local ports before the ADD, as CRI-O does. The pod keeps
// these ports, except those of the loop.
func TestChosenPorts(t *testing.T) {
	const portRange, reserved = "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports"
	for chosen, want := range map[[2]string][2]string{
		{"32768 60999", ""}:                {"32768 49151", "49152-65535"},
		{"1024 65535", ""}:                 {"1024 65535", "49152-65535"},
		{"1024 20001", "8080,30000-30010"}: {"1024 20001", "8080,30000-30010,49152-65535"},
		{"49152 65535", "50000-50010"}:     {"32768 49151", "49152-65535"},
		{"32768 60999", "40000-65535"}:     {"32768 49151", "40000-65535"},
		{"1024 65535", "40000-65535"}:      {"1024 65535", "40000-65535"},
		{"1024 65535", "8080,49000-49151"}: {"1024 65535", "8080,49000-65535"},
		{"1024 65535", "49000-50000"}:      {"1024 65535", "49000-65535"},
		{"1024 65535", "49152-65534"}:      {"1024 65535", "49152-65535"},
	} {
		f := newFabric(t)
		f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
		serve(t, f.other, ":8080")
		p := f.pod("pod1", pod1Addr, dual)
		f.add(p.NS, nl.Sysctl{Key: portRange, Value: chosen[0]}, nl.Sysctl{Key: reserved, Value: chosen[1]})
		for range 2 {
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			for i, key := range []string{portRange, reserved} {
				if got, err := p.Sysctl(key); err != nil || got != want[i] {
					t.Errorf("%v: %s is %q, want %q; %v", chosen, key, got, want[i], err)
				}
			}
		}
		if seen, err := call(p.NS, "tcp4", "172.20.0.10:80"); err != nil || seen != pod1Addr {
			t.Errorf("%v: the service sees %q; %v", chosen, seen, err)
		}
	}
}

// TestSharedPort makes the loop use the port of the pod's own server, by TCP and UDP, for each backend. At the same
// time, clients call this server.
func TestSharedPort(t *testing.T) {
	s := newScene(t, redirects)
	var rules []nl.NFRule
	for _, via := range []string{"169.254.72.1", "fe80::72"} {
		for _, proto := range []string{"tcp", "udp"} {
			rules = append(rules, nl.NFRule{nl.NextHop(netip.MustParseAddr(via)), nl.L4Proto(proto),
				nl.SNATPorts(50000-16384, 50000-16384)})
		}
	}
	s.add(s.node, nl.Table{Family: "inet", Name: "unlucky", Chains: []nl.Chain{
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 98, Rules: rules},
	}})
	for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
		{
			for _, c := range []struct {
				from     *nl.NS
				to, seen string
			}{
				{s.other, pod1Addr + ":50000", otherAddr},
				{s.pods[0].NS, "172.20.0.10:80", pod1Addr},
				{s.other, pod1Addr + ":50000", otherAddr},
				{s.pods[0].NS, "172.20.0.11:80", pod1Addr},
				{s.pods[1].NS, pod1Addr + ":50000", pod2Addr},
				{s.pods[0].NS, "172.20.0.14:80", pod1Addr},
				{s.pods[0].NS, "172.20.0.15:80", pod1Addr},
			} {
				seen, err := call(c.from, network, dialled(network, c.to))
				if want := seenAs(network, c.seen); err != nil || seen != want {
					t.Errorf("%s (%s): seen as %q, want %q; %v", c.to, network, seen, want, err)
				}
			}
		}
	}
}

// TestNoSocket calls servers on ports of the loop while no socket has the connection. Either the pod answers the SYN
// with a cookie, or the pod translates the connection.
func TestNoSocket(t *testing.T) {
	s := newScene(t, redirects)
	p := s.pods[1]
	s.add(p.NS, nl.Sysctl{Key: "net/ipv4/tcp_syncookies", Value: "2"}, // always
		nl.Table{Family: "inet", Name: "like_istio", Chains: []nl.Chain{
			{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100, Rules: []nl.NFRule{
				{nl.DAddr(netip.MustParsePrefix(pod2Addr + "/32")), nl.DPort("tcp", 50001, 50001),
					nl.DNAT(netip.MustParseAddrPort(pod2Addr + ":8080"))},
			}},
		}})
	for _, c := range []struct {
		name     string
		from     *nl.NS
		to, seen string
	}{
		{"cookie, from another host", s.other, pod2Addr + ":50000", otherAddr},
		{"cookie, from a sibling", s.pods[0].NS, pod2Addr + ":50000", pod1Addr},
		{"cookie, service", s.pods[0].NS, "172.20.0.15:80", pod1Addr},
		{"translated, from another host", s.other, pod2Addr + ":50001", otherAddr},
		{"translated, from a sibling", s.pods[0].NS, pod2Addr + ":50001", pod1Addr},
		{"translated, service", s.pods[0].NS, "172.20.0.17:80", pod1Addr},
	} {
		if seen, err := call(c.from, "tcp4", c.to); err != nil || seen != c.seen {
			t.Errorf("%s: seen as %q, want %q; %v", c.name, seen, c.seen, err)
		}
	}
}
