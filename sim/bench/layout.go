// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A layout is a way to connect pods to an ENI. Each layout has two hosts of its own.
type layout struct {
	name    string
	connect func(*host, *guest) error // connects a pod of the host
	finish  func(*host) error         // completes a host that has all its pods; may be nil
	// If true, the pods use Services, so the host has rules like those of kube-proxy, and tracks connections.
	service   bool
	tunnel    func(*pair) error // makes tunnels from pod "a" to the pods "b" and "c" (see pair); nil: no tunnels
	otherPods int               // number of pods that the first host gets before the pods "a" and "c"
}

// The names of the layouts to which budgets refer.
const (
	bare       = "ipvlan, bare"
	loopless   = "ours, serviceLoop none"
	crowded    = "ours, dataPath veth, pod 1500"
	routedVeth = "veth, routed"
	tracked    = "veth, routed, conntrack"
)

var layouts = []layout{
	{name: bare, connect: connectIPVlan},
	{name: ours, connect: connectChained(nil), service: true},
	{name: loopless, connect: connectChained(map[string]any{"serviceLoop": "none"}), finish: routeByNode,
		service: true},
	{name: byVeth, connect: connectChainedVeth, service: true},
	{name: crowded, connect: connectChainedVeth, service: true, otherPods: 1499},
	{name: "bridge on the ENI", connect: connectBridged},
	{name: routedVeth, connect: connectRouted},
	{name: tracked, connect: connectRouted, finish: trackConnections, service: true},
}

// subnet is the subnet of all pods and of the ENI eth1. Hosts of different layouts never communicate. The VPC of a
// layout is a bridge with the ENIs as its ports, because a bridge costs the fewest instructions.
var (
	subnet    = netip.MustParsePrefix("10.0.0.0/24")
	router    = netip.MustParseAddr("10.0.0.1") // the subnet's first address, as in EC2
	clusterIP = netip.MustParseAddr("172.20.0.1")
)

// clusterPort is the port of the Service whose backend is the pod "b" of a pair. The next port is that of the Service
// whose backend is the pod "c".
const clusterPort = 80

// A host is an instance, and a guest is a pod on a host.
type host struct {
	*vpcsim.Namespace
	name   string
	number int // the number of the host in its pair: 0 or 1
	eni    netip.Addr
	boot   netip.Addr // the address of eth0
	bin    string     // directory of our plugins
	guests []*guest
}

type guest struct {
	*vpcsim.Namespace
	name string
	pod  string // the name in the layout: a, b or c
	addr netip.Addr
}

// A pair has the two hosts of a layout, with their pods. The pods "a" and "c" are on the first host, and "b" is on the
// second host.
type pair struct {
	layout
	a, b, c *guest
	hosts   [2]*host
	vpc     *guest // the subnet's router
	note    string // the text in the column flows.noteColumn of the table
}

// newPair creates the hosts of a layout and their pods.
func (l layout) newPair(f *vpcsim.Fabric, number int, bin string) (*pair, error) {
	name := func(s string) string { return fmt.Sprintf("l%d-%s", number, s) }
	vpc, err := f.NewNamespace(name("vpc"))
	if err != nil {
		return nil, err
	}
	if err := addBridge(vpc.NS, "br0", router); err != nil {
		return nil, err
	}
	p := &pair{layout: l, vpc: &guest{Namespace: vpc, name: name("vpc"), addr: router}}
	for i := range p.hosts {
		h := &host{name: name(fmt.Sprint("host", i+1)), number: i, eni: netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + i)}),
			boot: netip.AddrFrom4([4]byte{10, 0, 0, byte(200 + i)}), bin: bin}
		p.hosts[i] = h
		if h.Namespace, err = f.NewNamespace(h.name); err != nil {
			return nil, err
		}
		if err := h.addENIs(vpc.NS, i); err != nil {
			return nil, err
		}
	}
	add := func(h *host, n string, addr netip.Addr) (g *guest, err error) {
		g = &guest{name: name(n), pod: n, addr: addr}
		if g.Namespace, err = f.NewNamespace(g.name); err == nil {
			h.guests = append(h.guests, g)
			err = l.connect(h, g)
		}
		return g, err
	}
	other := netip.MustParseAddr("10.0.1.0")
	for i := range l.otherPods {
		if _, err := add(p.hosts[0], fmt.Sprint("other", i), other); err != nil {
			return nil, err
		}
		other = other.Next()
	}
	for i, g := range []struct {
		to   **guest
		host int
	}{{&p.a, 0}, {&p.b, 1}, {&p.c, 0}} {
		*g.to, err = add(p.hosts[g.host], "abc"[i:i+1], netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
		if err != nil {
			return nil, err
		}
	}
	return p, p.finishHosts()
}

// finishHosts calls layout.finish for both hosts, and adds kube-proxy's rules and the tunnels if the layout has them.
func (p *pair) finishHosts() error {
	for _, h := range p.hosts {
		if p.finish != nil {
			if err := p.finish(h); err != nil {
				return err
			}
		}
		if !p.service {
			continue
		}
		if err := p.kubeProxyTable().Add(h.NS); err != nil {
			return err
		}
	}
	if p.tunnel != nil {
		return p.tunnel(p)
	}
	return nil
}

// kubeProxyTable returns rules that do what kube-proxy's rules do. Each Service has one backend, the server in pod "b"
// or "c". With tunnels, these pods are also routers. Each router is the backend of one more Service, whose ClusterIP is
// in gateways.
func (p *pair) kubeProxyTable() nl.Table {
	rule := func(proto string, to netip.Addr, port uint16, backend netip.AddrPort) nl.NFRule {
		return nl.NFRule{nl.DAddr(hostPrefix(to)), nl.DPort(proto, port, port), nl.DNAT(backend)}
	}
	var rules []nl.NFRule
	for i, g := range []*guest{p.b, p.c} {
		rules = append(rules, rule("tcp", clusterIP, clusterPort+uint16(i), netip.AddrPortFrom(g.addr, loadPort)))
		if p.tunnel != nil {
			rules = append(rules, rule("udp", gateways[i], tunnelPort, netip.AddrPortFrom(g.addr, tunnelPort)))
		}
	}
	return nl.Table{Family: "ip", Name: "kube-proxy", Chains: []nl.Chain{{
		Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100, Rules: rules,
	}}}
}

// addENIs gives a host its ENIs: eth0 for the node, and eth1 for the pods. The ENIs are ports of the VPC's bridge.
func (h *host) addENIs(vpc *nl.NS, number int) error {
	w := nl.Wiring{
		{NS: h.NS, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}},
		{NS: h.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/all/rp_filter", Value: "0"}},
		{NS: h.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "0"}},
		// eth1 must not answer ARP for the address of eth0
		{NS: h.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/all/arp_ignore", Value: "1"}},
		{NS: h.NS, Object: nl.Veth{Name: "eth0", MAC: mac(number, 1), Peer: fmt.Sprint("e0-", number),
			PeerMAC: mac(number, 2), PeerNS: vpc, MTU: 9001}},
		{NS: h.NS, Object: nl.Addr{Prefix: hostPrefix(h.boot), Dev: "eth0"}},
		// A real node has a default route, too. With this route, a loose rp_filter accepts all source addresses.
		{NS: h.NS, Object: nl.Route{Dst: nl.IPv4.Everywhere(), Via: router, Dev: "eth0", OnLink: true}},
		{NS: h.NS, Object: nl.Veth{Name: "eth1", MAC: mac(number, 3), Peer: fmt.Sprint("e1-", number),
			PeerMAC: mac(number, 4), PeerNS: vpc, MTU: 9001}},
	}
	if err := w.Add(); err != nil {
		return err
	}
	return errors.Join(addPort(vpc, "br0", fmt.Sprint("e0-", number)), addPort(vpc, "br0", fmt.Sprint("e1-", number)))
}

func mac(host, link int) string              { return fmt.Sprintf("02:00:00:00:%02x:%02x", host+1, link) }
func hostPrefix(a netip.Addr) netip.Prefix   { return netip.PrefixFrom(a, a.BitLen()) }
func subnetPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, subnet.Bits()) }

// routeByNode makes the host's packets to the VPC leave through eth0.
func routeByNode(h *host) error {
	return nl.Wiring{{NS: h.NS, Object: nl.Route{Dst: subnet, Dev: "eth0"}}}.Add()
}

// connectIPVlan gives a pod only an ipvlan slave of the ENI.
func connectIPVlan(h *host, g *guest) error {
	return nl.Wiring{
		{NS: h.NS, Object: nl.IPVlan{Name: "eth0", Master: "eth1", NS: g.NS}},
		{NS: g.NS, Object: nl.Addr{Prefix: subnetPrefix(g.addr), Dev: "eth0"}},
	}.Add()
}

// connectBridged connects the pod's link and the ENI to a bridge.
func connectBridged(h *host, g *guest) error {
	if len(h.guests) == 1 {
		if err := addBridge(h.NS, "cni0", netip.Addr{}); err != nil {
			return err
		}
		if err := addPort(h.NS, "cni0", "eth1"); err != nil {
			return err
		}
	}
	err := nl.Wiring{
		{NS: h.NS, Object: g.veth()},
		{NS: g.NS, Object: nl.Addr{Prefix: subnetPrefix(g.addr), Dev: "eth0"}},
	}.Add()
	if err != nil {
		return err
	}
	return addPort(h.NS, "cni0", g.name)
}

func (g *guest) veth() nl.Veth {
	last := int(g.addr.As4()[3])
	return nl.Veth{Name: g.name, MAC: mac(last, 1), Peer: "eth0", PeerMAC: mac(last, 2), PeerNS: g.NS, MTU: 9001}
}

// connectRouted connects a pod as amazon-vpc-cni-k8s does (docs/cni-proposal.md of that project). Packets to the pod
// use the main table, and packets from the pod use the ENI's table. The gateway of the pod is an address that no host
// has.
func connectRouted(h *host, g *guest) error {
	const table, toPod, fromPod = 2, 512, 1536
	hop := netip.MustParseAddr("169.254.1.1")
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	v := g.veth()
	w := nl.Wiring{
		{NS: h.NS, Object: v},
		{NS: h.NS, Object: nl.Neigh{Addr: g.addr, MAC: v.PeerMAC, Dev: v.Name}},
		{NS: h.NS, Object: nl.Route{Dst: hostPrefix(g.addr), Dev: v.Name}},
		{NS: h.NS, Object: nl.Rule{Pref: toPod, To: hostPrefix(g.addr), Table: unix.RT_TABLE_MAIN}},
		{NS: h.NS, Object: nl.Rule{Pref: fromPod, From: hostPrefix(g.addr), Table: table}},
		// The other host sends ARP requests for the pod's address, so eth1 must answer. EC2's fabric delivers packets
		// without ARP requests.
		{NS: h.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/eth1/proxy_arp", Value: "1"}},
		{NS: g.NS, Object: nl.Addr{Prefix: hostPrefix(g.addr), Dev: "eth0"}},
		{NS: g.NS, Object: nl.Neigh{Addr: hop, MAC: v.MAC, Dev: "eth0"}},
		{NS: g.NS, Object: nl.Route{Dst: hostPrefix(hop), Dev: "eth0"}},
		{NS: g.NS, Object: nl.Route{Dst: all, Via: hop, Dev: "eth0"}},
	}
	if len(h.guests) == 1 {
		w = append(w,
			nl.Step{NS: h.NS, Object: nl.Addr{Prefix: hostPrefix(h.eni), Dev: "eth1"}},
			nl.Step{NS: h.NS, Object: nl.Route{Dst: subnet, Dev: "eth1", Table: table}},
			nl.Step{NS: h.NS, Object: nl.Route{Dst: all, Via: router, Dev: "eth1", Table: table, OnLink: true}})
	}
	return w.Add()
}

// trackConnections adds further rules of amazon-vpc-cni-k8s. The rules mark connections that arrive through eth0, and
// masquerade connections that leave the VPC. Because of the rules, the host tracks the connections of all pods.
func trackConnections(h *host) error {
	const mark = 0x80
	return nl.Table{Family: "ip", Name: "aws", Chains: []nl.Chain{
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: -150, Rules: []nl.NFRule{
			{nl.IIFName("eth0"), nl.SetCTMark(mark)},
			{nl.CTMark(mark), nl.SetMark(mark)},
		}},
		{Name: "forward", Type: "filter", Hook: "forward",
			Rules: []nl.NFRule{{nl.CTState("established", "related"), nl.Accept()}}},
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []nl.NFRule{
			{nl.NotDAddr(netip.MustParsePrefix("10.0.0.0/16")), nl.OIFName("eth0"), nl.Masquerade()},
		}},
	}}.Add(h.NS)
}

// addBridge creates a bridge. If addr is valid, the bridge gets this address.
func addBridge(n *nl.NS, name string, addr netip.Addr) error {
	err := n.Do(func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: linkAttrs(name)}) })
	if err != nil {
		return fmt.Errorf("make the bridge %s: %w", name, err)
	}
	w := nl.Wiring{{NS: n, Object: nl.Up{Dev: name}}}
	if addr.IsValid() {
		w = append(w, nl.Step{NS: n, Object: nl.Addr{Prefix: subnetPrefix(addr), Dev: name}})
	}
	return w.Add()
}

func linkAttrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// addPort attaches a link, which is up, to a bridge.
func addPort(n *nl.NS, bridge, link string) error {
	return n.Do(func() error {
		b, err1 := netlink.LinkByName(bridge)
		l, err2 := netlink.LinkByName(link)
		err := errors.Join(err1, err2)
		if err == nil {
			err = netlink.LinkSetMaster(l, b)
		}
		if err != nil {
			return fmt.Errorf("make %s a port of %s: %w", link, bridge, err)
		}
		return nil
	})
}
