// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
)

// scenario has shorter and longer addresses than the recorded scenario, and addresses in other notations.
var scenario = kubeproxy.Scenario{
	kubeproxy.Node:    addrs("10.0.9.10", "2600:1f16:1:900::10"),
	kubeproxy.Client:  addrs("10.0.1.4", "2600:1f16:1:100:a::4"),
	kubeproxy.Sibling: addrs("10.0.1.40", "2600:1f16:1:100:a::40"),
	kubeproxy.Local:   addrs("100.64.100.200", "2600:1f16:1:200:ffff:ffff:ffff:fffe"),
	kubeproxy.Remote:  addrs("10.0.1.5", "2600:1f16:1:100:b::4"),
	kubeproxy.VPCHost: addrs("10.0.2.20", "2600:1f16:1:300::20"),
}

func addrs(v4, v6 string) kubeproxy.Addrs {
	return kubeproxy.Addrs{V4: netip.MustParseAddr(v4), V6: netip.MustParseAddr(v6)}
}

// A family is IPv4 or IPv6.
type family struct {
	name     string
	addrOf   func(kubeproxy.Addrs) netip.Addr
	anywhere netip.Prefix
}

var families = []family{
	{"IPv4", func(a kubeproxy.Addrs) netip.Addr { return a.V4 }, netip.MustParsePrefix("0.0.0.0/0")},
	{"IPv6", func(a kubeproxy.Addrs) netip.Addr { return a.V6 }, netip.MustParsePrefix("::/0")},
}

// A fabric has a namespace for each host. The node has a veth pair to each other host, and routes between the hosts.
type fabric map[kubeproxy.Host]*nl.NS

func newFabric(t *testing.T) fabric {
	t.Helper()
	f := fabric{}
	for h := range scenario {
		f[h], _ = nltest.NS(t, string(h))
	}
	node := f[kubeproxy.Node]
	for h, n := range f {
		if h != kubeproxy.Node {
			w := nl.Wiring{{NS: node, Object: nl.Veth{Name: string(h), Peer: "eth0", PeerNS: n, MTU: 9001}}}
			add(t, append(w, f.link(h)...))
		}
		answer(t, h, n, 8080)
		answer(t, h, n, 53)
		answer(t, h, n, 5555)
	}
	// Before kube-proxy's rules translate a packet from the node to a ClusterIP, the kernel looks up a route for the
	// packet. The source address is from this route.
	add(t, nl.Wiring{
		{NS: node, Object: nl.Route{Dst: families[0].anywhere, Dev: string(kubeproxy.VPCHost)}},
		{NS: node, Object: nl.Route{Dst: families[1].anywhere, Dev: string(kubeproxy.VPCHost)}},
		{NS: node, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}},
		{NS: node, Object: nl.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"}},
		// Remove the kernel's limit for ICMP messages. If a pod calls itself, the node sends redirects, which would use
		// up the limit. Then the pod would not get the ICMP error for a Service without backends.
		{NS: node, Object: nl.Sysctl{Key: "net/ipv4/icmp_ratelimit", Value: "0"}},
		{NS: node, Object: nl.Sysctl{Key: "net/ipv6/icmp/ratelimit", Value: "0"}},
	})
	return f
}

// link returns the wiring of both ends of the veth pair between the node and a host.
func (f fabric) link(h kubeproxy.Host) (w nl.Wiring) {
	node := f[kubeproxy.Node]
	for _, fam := range families {
		here, there := single(fam.addrOf(scenario[kubeproxy.Node])), single(fam.addrOf(scenario[h]))
		w = append(w, nl.Wiring{
			{NS: node, Object: nl.Addr{Prefix: here, Dev: string(h), NoDAD: true}},
			{NS: node, Object: nl.Route{Dst: there, Dev: string(h)}},
			{NS: f[h], Object: nl.Addr{Prefix: there, Dev: "eth0", NoDAD: true}},
			{NS: f[h], Object: nl.Route{Dst: here, Dev: "eth0"}},
			{NS: f[h], Object: nl.Route{Dst: fam.anywhere, Via: here.Addr(), Dev: "eth0"}},
		}...)
	}
	return w
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func add(t *testing.T, w nl.Wiring) {
	t.Helper()
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
}

// answer starts a TCP server and a UDP server in the namespace of the host h. The servers answer with the name of h and
// the caller's address.
func answer(t *testing.T, h kubeproxy.Host, n *nl.NS, port int) {
	t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	at := fmt.Sprintf("[::]:%d", port)
	err := n.Do(func() (err error) {
		if tcp, err = net.Listen("tcp", at); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close(); udp.Close() })
	tell := func(caller net.Addr) string {
		return string(h) + " " + netip.MustParseAddrPort(caller.String()).Addr().Unmap().String()
	}
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, tell(c.RemoteAddr()))
			c.Close()
		}
	}()
	go func() {
		for b := make([]byte, 99); ; {
			_, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			udp.WriteTo([]byte(tell(from)), from)
		}
	}()
}

// A caller makes calls with one family and one protocol.
type caller struct {
	fabric
	family
	network string // tcp or udp
}

// call makes a call from a host. It returns the host that answers, and the source address that this host sees.
func (c caller) call(from kubeproxy.Host, to netip.AddrPort) (by kubeproxy.Host, as netip.Addr, err error) {
	const patience = time.Minute
	var conn net.Conn
	err = c.fabric[from].Do(func() (err error) {
		conn, err = net.DialTimeout(c.network, to.String(), patience)
		return err
	})
	if err != nil {
		return "", as, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if c.network == "udp" {
		io.WriteString(conn, "who am I?")
	}
	b := make([]byte, 99)
	size, err := conn.Read(b)
	if err != nil {
		return "", as, err
	}
	name, addr, _ := strings.Cut(string(b[:size]), " ")
	as, err = netip.ParseAddr(addr)
	return kubeproxy.Host(name), as, err
}

// want makes a call from a host. One of the hosts in the argument "by" must answer. This host must see the address of
// the host in the argument "as".
func (c caller) want(t *testing.T, from, as kubeproxy.Host, to netip.AddrPort, by []kubeproxy.Host) kubeproxy.Host {
	t.Helper()
	got, seen, err := c.call(from, to)
	switch {
	case err != nil:
		t.Errorf("%s to %s: %v", from, to, err)
	case !slices.Contains(by, got):
		t.Errorf("%s to %s: %s answers, want one of %s", from, to, got, by)
	case seen != c.addrOf(scenario[as]):
		t.Errorf("%s to %s: is seen as %s, want the address of %s, %s", from, to, seen, as, c.addrOf(scenario[as]))
	}
	return got
}
