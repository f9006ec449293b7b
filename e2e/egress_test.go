// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// wayOut is an egress configuration: pods of two Kubernetes namespaces reach the whole internet through router pods,
// whose subnets have a NAT gateway.
var wayOut = map[string]any{"partner": map[string]any{
	"gateways":     []string{"172.20.0.24", "fd00:20::24"}, // addresses of the Service "egress" of package kubeproxy
	"destinations": []string{"0.0.0.0/0", "::/0"},
	"except":       []string{"2001:db8::/32"}, // the IPv6 block of the VPCs
	"namespaces":   []string{"payments", "cousins"},
	"routers":      []string{"egress"},
	"clients":      []string{"10.0.0.0/8", "100.64.0.0/10", "2001:db8::/32"},
}}

// egressModes has two modes: the combined plugin with the key egress, and the three plugins followed by the egress
// plugin.
var egressModes = []mode{
	{"single process", func(ipam, ptp map[string]any) {
		withServices(ipam, ptp)
		ptp["egress"] = wayOut
	}, dual},
	{"chained", withServices, dual},
}

// TestEgress tries clients and routers with both modes of kube-proxy. The clients must reach the destinations through
// routers. All other paths must work as without egress.
func TestEgress(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "fou", "fib")
	m := &matrix{counts: map[cell]string{}}
	for i, mode := range egressModes {
		t.Run(mode.name, func(t *testing.T) {
			e := newEgress(t, mode)
			if i > 0 {
				e.withoutAnswers(t)
			}
			for _, proxy := range proxiesOf(i) {
				t.Run(string(proxy), func(t *testing.T) {
					column := string(proxy) + ", " + mode.name
					m.columns = append(m.columns, column)
					serve(t, e.Scene, proxy)
					e.tryAll(t, m, column)
					e.clean(t)
				})
			}
			dropless(t, e.Scene)
			if i == 0 {
				e.seen(t)
				e.refuses(t)
				e.manyClients(t)
				e.withoutRouters(t)
			}
		})
	}
	rows := append(paths.WithoutEgress(), paths.Egress...)
	for _, svc := range paths.Services {
		rows = append(rows, svc.Path)
	}
	t.Logf("probes that were right, by path, family and mode:\n%s", m.table(rows))
}

// An egressScene has two clients on two ENIs of the first node. On the ENI of the first client, there are also a
// router, and a pod that is no client. The second router is on the second node.
type egressScene struct {
	*paths.Scene
	config string // the path of the conflist

	client, router, other, remote *paths.Pod
}

func newEgress(t *testing.T, m mode) *egressScene {
	t.Helper()
	m.NAT = true // the VPC translates addresses of ENIs: packets of routers leave in this way
	conflist, err := m.conflist()
	if err == nil && m.name == "chained" {
		conflist, err = chainedEgress(conflist)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := m.open(t, conflist)
	answering(t, s, []placed{{0, "payments", "client"}, {0, "egress", "router"}, {0, "default", "other"},
		{0, "cousins", "cousin"},
		{1, "egress", "remoterouter"}, {1, "default", "remotesibling"}, {1, "cousins", "remotecousin"}})
	e := &egressScene{Scene: s, config: filepath.Join(t.TempDir(), "10.conflist")}
	e.client, e.router, e.other, e.remote =
		s.Nodes[0].Pods[0], s.Nodes[0].Pods[1], s.Nodes[0].Pods[2], s.Nodes[1].Pods[0]
	if err := os.WriteFile(e.config, conflist, 0o600); err != nil {
		t.Fatal(err)
	}
	return e
}

// A placed says on which node a new pod is, and its Kubernetes namespace and name.
type placed struct {
	node             int
	kubernetes, name string
}

// answering adds pods. Each also answers as a DNS server.
func answering(t *testing.T, s *paths.Scene, all []placed) {
	t.Helper()
	for _, p := range all {
		addPod(t, s.Nodes[p.node], p.kubernetes, p.name)
	}
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			if err := p.Answer(paths.DNS); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// chainedEgress returns the conflist with four plugins instead of the combined plugin.
func chainedEgress(conflist []byte) ([]byte, error) {
	var list map[string]any
	if err := json.Unmarshal(conflist, &list); err != nil {
		return nil, err
	}
	all := list["plugins"].([]any)[0].(map[string]any)
	of := func(typ string) map[string]any {
		one := map[string]any{}
		for k, v := range all {
			one[k] = v // each plugin reads only its own keys
		}
		one["type"] = "cni-ipvlan-vpc-k8s-" + typ
		return one
	}
	list["plugins"] = []any{of("ipam"), of("ipvlan"), of("unnumbered-ptp"),
		map[string]any{"type": "cni-ipvlan-vpc-k8s-egress", "egress": wayOut}}
	return json.Marshal(list)
}

// tryAll tries the paths through routers with all probes, and then all other paths.
func (e *egressScene) tryAll(t *testing.T, m *matrix, column string) {
	for _, f := range dual.Families {
		for _, p := range paths.Egress {
			m.note(t, cell{p.Name, f, column}, p.Try(e.Scene, f, paths.Probes))
		}
		for _, p := range paths.WithoutEgress() {
			if p.In(f) {
				m.note(t, cell{p.Name, f, column}, p.Try(e.Scene, f, paths.Quick))
			}
		}
		for _, svc := range paths.Services {
			if svc.In(f) {
				m.note(t, cell{svc.Name, f, column}, svc.Try(e.Scene, f, svc.Probes))
			}
		}
	}
	seen, err := e.other.Call("tcp", netip.AddrPortFrom(vpcsim.InternetAddr, paths.Port))
	if err != nil || seen.Addr() != e.Nodes[0].PublicIP() {
		t.Errorf("the internet sees a pod that is no client as %v, want the node, %s; %v", seen,
			e.Nodes[0].PublicIP(), err)
	}
}

// clean checks that CHECK and doctor find no fault. doctor also sends requests to the routers of the node's clients.
func (e *egressScene) clean(t *testing.T) {
	t.Helper()
	if out := e.tool(t, 0, "doctor", "--check=egress", "--config="+e.config); !strings.HasPrefix(out,
		"nothing is wrong") {
		t.Errorf("doctor reports: %s", out)
	}
	for _, n := range e.Nodes {
		for _, p := range n.Pods {
			if err := n.Check(t.Context(), p); err != nil {
				t.Error(err)
			}
		}
	}
}

func (e *egressScene) tool(t *testing.T, node int, args ...string) string {
	t.Helper()
	out, err := e.Nodes[node].Run(t.Context(), filepath.Join(programs(t), "cni-ipvlan-vpc-k8s-tool"), args...)
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return out
}

// seen checks that the tool shows the clients and the routers of all nodes. The tool sees all nodes, because all
// simulated nodes share this kernel and its namespaces.
func (e *egressScene) seen(t *testing.T) {
	var answer struct {
		Rule struct{ Port int }
		Pods []struct {
			Role, Pod      string
			IP             netip.Addr
			Sent, Received int
		}
	}
	if err := json.Unmarshal([]byte(e.tool(t, 0, "egress", "--config="+e.config, "--output=json")),
		&answer); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, p := range answer.Pods {
		if p.Sent > 0 && p.Received > 0 {
			found[p.Role+" "+p.Pod] = true
		}
	}
	for _, want := range []string{"client payments/client", "client cousins/cousin", "router egress/router"} {
		if !found[want] {
			t.Errorf("cni-tool egress does not show %s with packets: %+v", want, answer)
		}
	}
	if answer.Rule.Port != egress.DefaultPort {
		t.Errorf("the rule for security groups is %+v", answer.Rule)
	}
	if out := e.tool(t, 0, "metrics", "--config="+e.config); !strings.Contains(out,
		`cni_ipvlan_vpc_egress_refused_packets{role="client"} 0`) {
		t.Errorf("metrics have not what was refused: %s", out)
	}
}

// inner returns a UDP packet to a pod, as a tunnel carries it. The packet has a payload of 10 bytes.
func inner(from, to netip.Addr) []byte {
	const payload = 10
	b := make([]byte, 28+payload)
	b[0], b[8], b[9] = 0x45, 64, 17 // RFC 791: IHL, time to live, UDP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	binary.BigEndian.PutUint16(b[10:], sum(b[:20]))
	binary.BigEndian.PutUint16(b[20:], 40000)
	binary.BigEndian.PutUint16(b[22:], paths.Port)
	binary.BigEndian.PutUint16(b[24:], 8+payload) // UDP length; no checksum (RFC 768)
	return b
}

func (e *egressScene) send(t *testing.T, to *paths.Pod, packets ...[]byte) {
	t.Helper()
	err := e.Nodes[1].Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(to.Addr(paths.IPv4), egress.DefaultPort).String())
		if err != nil {
			return err
		}
		defer c.Close()
		for _, p := range packets {
			if _, err := c.Write(p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// refuses checks that no program can reach a client through the client's tunnel. refuses also checks that a router
// drops two kinds of packets in the tunnel: packets that are not from clients, and packets for the router itself.
func (e *egressScene) refuses(t *testing.T) {
	const noHost = "203.0.113.77"
	node := e.Nodes[0].Addr()
	for name, call := range map[string]struct {
		pod      *paths.Pod
		from, to netip.Addr
	}{
		"a call of a client":             {e.client, vpcsim.InternetAddr, e.client.Addr(paths.IPv4)},
		"a call of a router":             {e.router, e.client.Addr(paths.IPv4), e.router.Addr(paths.IPv4)},
		"a packet of no host to outside": {e.router, netip.MustParseAddr(noHost), vpcsim.InternetAddr},
		"a call of the metadata service": {e.router, e.client.Addr(paths.IPv4), netip.MustParseAddr("169.254.169.254")},
		"a call of the router's node":    {e.router, e.client.Addr(paths.IPv4), node},
		"a call of a Service":            {e.router, e.client.Addr(paths.IPv4), netip.MustParseAddr("172.20.0.10")},
		"a call of another pod":          {e.router, e.client.Addr(paths.IPv4), e.other.Addr(paths.IPv4)},
	} {
		before := e.state(t, call.pod)
		e.send(t, call.pod, inner(call.from, call.to))
		await(t, name+" is refused", func() bool { return e.state(t, call.pod).Refused > before.Refused })
		if now := e.state(t, call.pod); now.Forwarded > before.Forwarded {
			t.Errorf("%s was forwarded", name)
		}
	}
	e.othersErrors(t)
	dropless(t, e.Scene)
}

// othersErrors makes a sender that is not a router send an ICMP error through the tunnel. The error must not lower the
// path MTU of a client's connection outside the tunnel.
func (e *egressScene) othersErrors(t *testing.T) {
	t.Helper()
	to := netip.AddrPortFrom(e.remote.Addr(paths.IPv4), paths.Port)
	before := e.state(t, e.client)
	if _, err := e.client.Call("udp", to); err != nil {
		t.Fatal(err)
	}
	var c *net.UDPConn
	err := e.client.Do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	about := inner(e.client.Addr(paths.IPv4), to.Addr())[:28]
	binary.BigEndian.PutUint16(about[20:], uint16(c.LocalAddr().(*net.UDPAddr).Port))
	e.send(t, e.client, fragmentationNeeded(e.router.Addr(paths.IPv4), e.client.Addr(paths.IPv4), 600, about))
	await(t, "an error about a connection outside the tunnel is refused",
		func() bool { return e.state(t, e.client).Refused > before.Refused })
	if mtu, _, err := e.client.PathMTU(to); err != nil || mtu < 1500 {
		t.Errorf("the path MTU of a connection outside the tunnel is %d; %v", mtu, err)
	}
}

// fragmentationNeeded returns the ICMP error about the packet in about, as a tunnel carries it (RFC 792, RFC 1191).
func fragmentationNeeded(from, to netip.Addr, mtu uint16, about []byte) []byte {
	b := inner(from, to)[:20]
	b[9] = 1
	icmp := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, about...)
	binary.BigEndian.PutUint16(icmp[2:], sum(icmp))
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(icmp)))
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], sum(b))
	return append(b, icmp...)
}

func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	s = s>>16 + s&0xffff
	return ^uint16(s + s>>16)
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (e *egressScene) state(t *testing.T, p *paths.Pod) egress.State {
	t.Helper()
	s, err := egress.Read(p.NS)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// manyClients sends packets from 200 addresses of the VPC to one router. The router must send an answer to each
// address, and must not need more links for this.
func (e *egressScene) manyClients(t *testing.T) {
	const clients = 200
	links, err := e.router.NS.Links()
	if err != nil {
		t.Fatal(err)
	}
	drops, err := e.Drops()
	if err != nil {
		t.Fatal(err)
	}
	sent := e.state(t, e.router).Sent
	var packets [][]byte
	for i, a := 0, netip.MustParseAddr("100.64.200.1"); i < clients; i, a = i+1, a.Next() {
		packets = append(packets, inner(a, vpcsim.InternetAddr))
	}
	e.send(t, e.router, packets...)
	await(t, "each client has an answer", func() bool { return e.state(t, e.router).Sent >= sent+clients })
	await(t, "the answers leave for the clients", func() bool {
		now, err := e.Drops()
		return err == nil && now.NoHost >= drops.NoHost+clients // no ENI has these addresses
	})
	if now, err := e.router.NS.Links(); err != nil || len(now) != len(links) {
		t.Errorf("the router has %d links with %d clients, and had %d; %v", len(now), clients, len(links), err)
	}
}

// withoutAnswers checks that doctor reports a router whose clients get no answers. Then the router gets an answer from
// a host. If it did not, later runs of doctor could report this router again, because the Service may lead all clients
// to the other router.
func (e *egressScene) withoutAnswers(t *testing.T) {
	var packets [][]byte
	for range 30 {
		packets = append(packets, inner(e.client.Addr(paths.IPv4), vpcsim.InternetAddr.Next()))
	}
	e.send(t, e.router, packets...)
	await(t, "the router has forwarded them", func() bool { return e.state(t, e.router).Forwarded == 30 })
	e.reports(t, e.config,
		"router egress/router: the router has forwarded 30 packets of clients, but no answer has come")
	e.send(t, e.router, inner(e.client.Addr(paths.IPv4), vpcsim.InternetAddr))
	await(t, "the router has an answer", func() bool { return e.state(t, e.router).Answered > 0 })
}

// withoutRouters checks the findings of doctor while kube-proxy does not know the Service, and while the Service has no
// endpoint.
func (e *egressScene) withoutRouters(t *testing.T) {
	e.reports(t, e.config,
		"client payments/client: no router behind the gateway 172.20.0.24 answers, so the client does not reach "+
			"0.0.0.0/0")
	stop, err := e.Serve(kubeproxy.NFTables)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(e.config)
	if err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "10.conflist") // the gateway is the Service "empty" of package kubeproxy
	other := strings.NewReplacer("172.20.0.24", "172.20.0.23", "fd00:20::24", "fd00:20::23", `"egress":`,
		`"egressPort":80,"egress":`).Replace(string(text))
	if err := os.WriteFile(empty, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, gw := range []string{"172.20.0.23", "fd00:20::23"} {
		e.reports(t, empty,
			"egress partner, gateway "+gw+": the gateway refuses UDP port 80. Its Service has no endpoint")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func (e *egressScene) reports(t *testing.T, config, want string) {
	t.Helper()
	if out := e.tool(t, 0, "doctor", "--check=egress", "--config="+config); !strings.Contains(out, want) {
		t.Errorf("doctor reports %s, want %q", out, want)
	}
}

// TestTunnelUntracked: the connection trackers of a client and of its routers must have no entries for the UDP packets
// of the tunnel.
func TestTunnelUntracked(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "fou", "fib")
	e := newEgress(t, egressModes[0])
	serve(t, e.Scene, kubeproxy.NFTables)
	udp := nl.DPort("udp", egress.DefaultPort, egress.DefaultPort)
	count := nl.Table{Family: "inet", Name: "tunnel"}
	for _, hook := range []string{"input", "output"} {
		count.Chains = append(count.Chains, nl.Chain{Name: hook, Type: "filter", Hook: hook, Rules: []nl.NFRule{
			{udp, nl.CTState("untracked"), nl.Count(), nl.Accept()}, {udp, nl.Count(), nl.Drop()}}})
	}
	pods := []*paths.Pod{e.client, e.router, e.remote}
	for _, p := range pods {
		if err := count.Add(p.NS); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range dual.Families {
		for _, p := range paths.Egress {
			if r := p.Try(e.Scene, f, paths.Quick); r.Err != nil {
				t.Errorf("%s, %v: %v", p.Name, f, r.Err)
			}
		}
	}
	for _, p := range pods {
		counted, err := count.Counters(p.NS)
		if err := errors.Join(err, count.Del(p.NS)); err != nil || len(counted) != 4 {
			t.Fatal(counted, err)
		}
		for _, c := range counted {
			passed := c.Packets > 0
			if c.Drops && passed || !c.Drops && !passed && p == e.client { // the Service chooses one of the routers
				t.Errorf("%s: of the tunnel, %d packets passed %s, tracked: %v", p.Name, c.Packets, c.Chain, c.Drops)
			}
		}
	}
}

// TestRouterCallsSibling: a router calls a Service whose backend is on the router's ENI. The packets must not go
// through the VPC, because the VPC need not send packets back to the ENI from which they came.
func TestRouterCallsSibling(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "fou", "fib")
	m := egressModes[0]
	m.NAT = true
	conflist, err := m.conflist()
	if err != nil {
		t.Fatal(err)
	}
	s := m.open(t, conflist)
	answering(t, s, []placed{{0, "egress", "router"}, {0, "default", "sibling"}, {0, "cousins", "cousin"},
		{1, "default", "remote"}, {1, "default", "remotesibling"}, {1, "cousins", "remotecousin"}})
	noWayBack(t)
	serve(t, s, kubeproxy.NFTables)
	const path = "pod to a Service on its ENI"
	i := slices.IndexFunc(paths.Services, func(svc paths.Service) bool { return svc.Name == path })
	for _, f := range dual.Families {
		if r := paths.Services[i].Try(s, f, paths.Services[i].Probes[:1]); r.Err != nil {
			t.Errorf("%s, %v: %v", path, f, r.Err)
		}
	}
}

// TestEgressToOwnVPC: the configured destinations include the VPC, and thus the routers and the backends of Services.
// With the loop masquerade, the client's pod forwards packets to such backends. These packets must not enter the
// tunnel. With the loop redirect, the packets go to the VPC router. The pod must not ask for the MAC address of the
// egress gateway: the VPC of this test would answer, but a real VPC would not.
func TestEgressToOwnVPC(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "fou", "fib")
	for _, loop := range []string{redirect, "masquerade"} {
		e := newEgress(t, mode{loop, func(ipam, ptp map[string]any) {
			loopBy(loop)(ipam, ptp)
			partner := maps.Clone(wayOut["partner"].(map[string]any))
			partner["destinations"] = []string{"0.0.0.0/0", "100.64.0.0/16", "::/0", "2001:db8:0:100::/56"}
			ptp["egress"] = map[string]any{"partner": partner}
		}, dual})
		serve(t, e.Scene, kubeproxy.NFTables)
		const service = "pod of the other ENI to a Service on another node"
		i := slices.IndexFunc(paths.Services, func(svc paths.Service) bool { return svc.Name == service })
		for _, p := range slices.Concat(paths.Egress, []paths.Path{paths.Services[i].Path}) {
			for _, f := range dual.Families {
				if r := p.Try(e.Scene, f, paths.Quick); r.Err != nil {
					t.Errorf("%s: %s, %v: %v", loop, p.Name, f, r.Err)
				}
			}
		}
		for _, p := range e.Nodes[0].Pods {
			asked, err := exec.Command("nsenter", "--net="+p.Path, "ip", "neigh", "show", "dev",
				"eth0").CombinedOutput()
			if err != nil || strings.Contains(string(asked), "fd00:20::24") {
				t.Errorf("%s: neighbours of %s: %s%v", loop, p.Name, asked, err)
			}
		}
	}
}

// noWayBack makes the VPC drop each packet that would leave the VPC through the ENI from which it came.
func noWayBack(t *testing.T) {
	t.Helper()
	all, err := filepath.Glob("/run/netns/*-vpc")
	if err != nil || len(all) != 1 {
		t.Fatalf("the VPC is one of %v, %v", all, err)
	}
	out, err := exec.Command("nsenter", "--net="+all[0], "sh", "-ec",
		`nft "add table inet back; add chain inet back forward { type filter hook forward priority 0; }"
		ip -br link | while read l rest; do l=${l%@*}; nft add rule inet back forward iifname $l oifname $l drop; done`).CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
}
