// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Link4 and Link6 are the links of the tunnels in a pod, for IPv4 and IPv6.
const (
	Link4 = ifname.Egress + "4"
	Link6 = ifname.Egress + "6"

	anyLink = ifname.Egress + "*" // the netfilter pattern that matches both names
)

// Table is the name of the netfilter table that this plugin adds to a client or a router. The table's family is inet.
const Table = nl.OwnTable + "_egress"

// The bits of the marks of packets and connections in a pod. The default of nodePortMark has other bits.
const (
	// In a client, packets with this bit skip the tunnel, and connections with this bit use the tunnel. In a router,
	// packets and connections with this bit have come from the tunnel.
	mark = 1 << 30
	// In a router, packets with this bit belong to a connection from the tunnel, and go back to the client.
	answer = 1 << 29
)

// Marks are the bits that nodePortMark must not have.
const Marks = mark | answer

// The priorities of a pod's routing rules, and the numbers of its routing tables. Our rules come after two other kinds
// of rules: the rules of unnumbered-ptp for callers at NodePorts (keepCaller), and the rules of ipvlan for further
// NICs.
const (
	prefPast = 1535 // client: packets that leave through the ENI
	prefOut  = 1536 // client: packets that go into the tunnel; router: packets from the tunnel to the VPC
	prefAway = 1537 // router: packets from the tunnel to all other destinations
	prefBack = 1538 // router: answers that go into the tunnel

	rules = 7 // the number of priorities, from prefPast on

	// in a client, the routes into the tunnel; in a router, the routes for packets out of the tunnel
	TableOut  = 73
	tableBack = 74
)

// A pod has the facts that the wiring of a client or a router needs.
type pod struct {
	ns    *nl.NS
	nic   plugin.NIC
	addrs []netip.Addr // of the first NIC
	hops  []netip.Addr // gateways of the subnets that contain addrs
	links []string     // of the attachment: first the NIC's link, then the pod's end of the veth pair
	mtu   int          // smallest MTU of links
	group uint32       // of the attachment's links
	port  uint16

	vpc    []netip.Prefix // destinations of the routes in prevResult, without default routes
	routes []netip.Prefix // destinations of the pod's main table, without default routes
}

func (p *pod) wiring(r *plugin.Request[Config], role role) (nl.Wiring, error) {
	if role.router != "" {
		return p.routerWiring(r.Config.Egresses[role.router])
	}
	var all []Egress
	for _, name := range role.client {
		e := r.Config.Egresses[name]
		if !slices.ContainsFunc(e.gateways, func(a netip.Addr) bool { return p.addr(nl.FamilyOf(a)).IsValid() }) {
			return nil, plugin.Errorf(plugin.CodeRefused,
				"give the egress a gateway of the pods' family, or let the pods use another egress",
				"pod %s uses the egress %s: the gateways of the egress are %v, but the pod has only the addresses %v",
				r.Pod, name, e.gateways, p.addrs)
		}
		all = append(all, e)
	}
	return p.clientWiring(all)
}

// readPod reads a pod from prevResult and from the kernel. It returns nil for a further attachment, which Multus can
// make. Such an attachment gets no role, because the tunnel already uses the address of the first attachment.
func readPod(r *plugin.Request[Config], ns *nl.NS) (*pod, error) {
	own := nl.PodGroup(r.Digest())
	p := &pod{ns: ns, nic: plugin.NICs(r.Prev, r.IfName)[0], group: own, port: r.Config.port}
	eni, err := ns.LinkByName(r.IfName)
	if err != nil {
		return nil, fmt.Errorf("pod: %w", err)
	}
	if nl.Attachment(eni.Group) == nl.FurtherGroup(own) {
		return nil, nil
	}
	// A veth plugin of another project may return a result like that of a routed pod. But the link of that plugin does
	// not have this attachment's group.
	if _, routed := plugin.Routed(r.Prev, r.IfName); routed && nl.Attachment(eni.Group) == own {
		return nil, plugin.Errorf(plugin.CodeRefused,
			`use a pool with dataPath "ipvlan" for the pod, or let the pod use no egress`,
			`pod %s is a client or a router of an egress, and its pool has dataPath "veth"`, r.Pod)
	}
	if eni.Unhooked() {
		return nil, plugin.Errorf(plugin.CodeInvalid, `use mode "l2" for networks with egress`,
			`mode "l3s": the filters of an egress see no packets that arrive by %s`, eni.Name)
	}
	for _, c := range p.nic.IPs {
		if a, ok := plugin.Addr(c.Gateway); ok {
			p.hops = append(p.hops, a)
		}
	}
	p.addrs = p.nic.Addrs()
	for _, route := range r.Prev.Routes {
		if dst, ok := plugin.Prefix(route.Dst); ok && dst.Bits() > 0 && !slices.Contains(p.vpc, dst.Masked()) {
			p.vpc = append(p.vpc, dst.Masked())
		}
	}
	return p, p.readKernel(eni)
}

// readKernel reads the links, the MTU and the routes.
func (p *pod) readKernel(eni nl.Link) error {
	all, err := p.ns.Links()
	if err != nil {
		return err
	}
	p.links, p.mtu = []string{eni.Name}, eni.MTU
	for _, l := range all {
		if nl.Attachment(l.Group) == p.group && !slices.Contains([]string{eni.Name, Link4, Link6}, l.Name) {
			p.links, p.mtu = append(p.links, l.Name), min(p.mtu, l.MTU)
		}
	}
	routes, err := p.ns.Routes(nl.RouteFilter{Table: nl.MainTable})
	for _, r := range routes {
		switch f := nl.FamilyOf(r.Dst.Addr()); {
		case r.Dst.Bits() > 0 && !slices.Contains(p.routes, r.Dst):
			p.routes = append(p.routes, r.Dst)
		case r.Dst.Bits() == 0 && r.Dev == eni.Name && r.Via.IsValid() && !p.nextHop(f).IsValid():
			p.hops = append(p.hops, r.Via) // a result may lack gateways, for example the result of amazon-vpc-cni-k8s
		}
	}
	return err
}

func (p *pod) addr(f nl.Family) netip.Addr { return nl.FirstAddr(p.addrs, f) }

// nextHop returns the gateway for the pod's address of a family, or the zero address.
func (p *pod) nextHop(f nl.Family) netip.Addr { return nl.FirstAddr(p.hops, f) }

// families returns the families of which both the pod and the gateways have an address.
func (p *pod) families(all ...Egress) (fs []nl.Family) {
	for _, f := range nl.Families {
		if p.addr(f).IsValid() && slices.ContainsFunc(all, func(e Egress) bool { return e.gateway(f).IsValid() }) {
			fs = append(fs, f)
		}
	}
	return fs
}

func linkName(f nl.Family) string { return nl.ByFamily(f, Link4, Link6) }

// tunnelObjects returns the pod's end of the tunnels of a family, and the sysctls for this end.
func (p *pod) tunnelObjects(f nl.Family, mtu int) (objects []nl.Object) {
	local := p.addr(f)
	most := nl.TunnelMTU(f, p.mtu)
	if mtu == 0 || mtu > most {
		mtu = most
	}
	name := linkName(f)
	objects = append(objects, nl.Tunnel{Name: name, Local: local, Port: p.port, MTU: mtu, Group: p.group})
	if f == nl.IPv6 { // runtimes disable IPv6 in new namespaces
		return append(objects, nl.Sysctl{Key: "net/ipv6/conf/" + name + "/disable_ipv6", Value: "0"})
	}
	for _, link := range slices.Concat([]string{"all", "default", name}, p.links) {
		objects = append(objects, anySourceSysctl(link))
	}
	return objects
}

// udpPorts returns the UDP ports that receive the tunnels' packets. At these ports, the kernel unpacks the packets.
func (p *pod) udpPorts(families []nl.Family) (objects []nl.Object) {
	for _, f := range families {
		objects = append(objects, nl.FOU{Local: p.addr(f), Port: p.port})
	}
	return objects
}

// anySourceSysctl turns off rp_filter, which drops a packet if the route to its source uses another link than the
// incoming link. In a router, a packet out of the tunnel comes from a client, and the route to the client uses the
// ENI's link. In a client, the whole internet may be a destination, so the route to a caller at a NodePort uses the
// tunnel. The loose check would not help: on a link without addresses, such as a tunnel, it is as strict as the strict
// check (__fib_validate_source). The kernel uses the larger of the values of the link and of "all". If repair makes a
// pair again, the pair gets the value of "default". So the value of "default" is 0, too.
func anySourceSysctl(link string) nl.Sysctl {
	return nl.Sysctl{Key: "net/ipv4/conf/" + link + "/rp_filter", Value: "0"}
}

// untrackedChains returns chains that turn off connection tracking for the tunnel's own UDP packets. Each connection
// has two flows of such packets, one in each direction. The flows have different source ports. If an end of the tunnel
// tracked these flows, this end would have two more entries for each connection. No rule needs these entries. In a
// client, the chain of outgoing packets turns off tracking for packets to a gateway. In a router, this chain turns off
// tracking for packets from the router's own address. If serviceLoop is "masquerade", a client's tunnel packets go to
// the node, where kube-proxy chooses a router, and come back through the client's pair. Then the client tracks them,
// because the masquerade must translate them.
func (p *pod) untrackedChains(families []nl.Family, sent func(nl.Family) nl.Term) (chains []nl.Chain) {
	const raw = -300
	in := nl.Chain{Name: "tunnel_in", Type: "filter", Hook: "prerouting", Priority: raw}
	out := nl.Chain{Name: "tunnel_out", Type: "filter", Hook: "output", Priority: raw}
	for _, f := range families {
		udp := nl.DPort("udp", p.port, p.port)
		in.Rules = append(in.Rules, nl.NFRule{udp, nl.DAddr(nl.HostPrefix(p.addr(f))), nl.Notrack()})
		out.Rules = append(out.Rules, nl.NFRule{udp, sent(f), nl.Notrack()})
	}
	if len(families) == 0 {
		return nil
	}
	return []nl.Chain{in, out}
}
