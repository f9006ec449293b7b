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

	anyLink = ifname.Egress + "*" // both, as netfilter matches names
)

// Table is the name of our table of netfilter in a pod that is a client or a router. Its family is
// inet.
const Table = nl.OwnTable + "_egress"

// The bits of marks that we use in a pod. The default of nodePortMark uses other bits.
const (
	mark   = 1 << 30 // client: a packet that answers; router: a connection, and a packet, from the tunnel
	answer = 1 << 29 // router: a packet that answers such a connection
)

// Marks are these bits. nodePortMark must not have these bits.
const Marks = mark | answer

// The rules and tables of routes in a pod. The rules come after the rules of callers and of further NICs.
const (
	prefPast = 1535 // client: what leaves by the ENI
	prefOut  = 1536 // client: into the tunnel; router: what came out of it goes to the VPC
	prefAway = 1537 // router: and further
	prefBack = 1538 // router: answers go into the tunnel

	rules = 7 // that a pod may have, from prefPast on

	// TableOut has the routes into the tunnel, in a client.
	TableOut  = 73
	tableBack = 74
)

// A pod is what both roles need to know of a pod.
type pod struct {
	ns    *nl.NS
	nic   plugin.NIC
	addrs []netip.Addr // of its first NIC
	hops  []netip.Addr // the gateways of these addresses' subnets
	links []string     // of the attachment: that of the NIC, then the pair's
	mtu   int          // of what leaves by them
	group uint32       // of the attachment's links
	port  uint16

	vpc    []netip.Prefix // what prevResult routes by the NIC, default routes excepted
	routes []netip.Prefix // all that the pod's main table has, default routes excepted
}

// wiring is what a pod gets for its role.
func (p *pod) wiring(r *plugin.Request[Config], role role) (nl.Wiring, error) {
	if role.router != "" {
		return p.router(r.Config.Egresses[role.router])
	}
	var all []Egress
	for _, name := range role.client {
		e := r.Config.Egresses[name]
		if !slices.ContainsFunc(e.gateways, func(a netip.Addr) bool { return p.addr(nl.FamilyOf(a)).IsValid() }) {
			return nil, plugin.Errorf(plugin.CodeRefused,
				"give the egress a gateway of the pods' family, or the pods another egress",
				"pod %s uses the egress %s: its gateways are %v, but the pod has only %v", r.Pod, name,
				e.gateways, p.addrs)
		}
		all = append(all, e)
	}
	return p.client(all)
}

// readPod returns nil for a further attachment of a pod, as Multus makes it. A further attachment gets no role: the
// tunnel has the address of the first attachment.
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
	// the result of another project's plugin for a veth pair looks like that for a routed pod, but its link has no
	// group
	if _, routed := plugin.Routed(r.Prev, r.IfName); routed && nl.Attachment(eni.Group) == own {
		return nil, plugin.Errorf(plugin.CodeRefused,
			`serve its namespace from a pool with dataPath "ipvlan", or take it out of the egress`,
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

// readKernel reads the MTU and the routes.
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
		case r.Dst.Bits() == 0 && r.Dev == eni.Name && r.Via.IsValid() && !p.hop(f).IsValid():
			p.hops = append(p.hops, r.Via) // other projects' results may name no gateway: amazon-vpc-cni-k8s
		}
	}
	return err
}

// addr returns the pod's address of a family, or the zero address if the pod has none.
func (p *pod) addr(f nl.Family) netip.Addr { return first(p.addrs, f) }

// hop is the gateway of a family.
func (p *pod) hop(f nl.Family) netip.Addr { return first(p.hops, f) }

func first(addrs []netip.Addr, f nl.Family) netip.Addr {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return nl.FamilyOf(a) == f })
	if i < 0 {
		return netip.Addr{}
	}
	return addrs[i]
}

// families are the families in which both the pod and the gateways have an address.
func (p *pod) families(all ...Egress) (fs []nl.Family) {
	for _, f := range nl.Families {
		if p.addr(f).IsValid() && slices.ContainsFunc(all, func(e Egress) bool { return e.gateway(f).IsValid() }) {
			fs = append(fs, f)
		}
	}
	return fs
}

func linkName(f nl.Family) string {
	if f == nl.IPv6 {
		return Link6
	}
	return Link4
}

// tunnel is the end of the tunnels in a pod.
func (p *pod) tunnel(f nl.Family, mtu int) (objects []nl.Object) {
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
	return append(objects, p.anySource()...)
}

// doors are the UDP ports by which packets come out of the tunnels.
func (p *pod) doors(families []nl.Family) (objects []nl.Object) {
	for _, f := range families {
		objects = append(objects, nl.FOU{Local: p.addr(f), Port: p.port})
	}
	return objects
}

// anySource turns rp_filter off, the check whether a route leads back by the link of a packet. A packet out of a tunnel
// has a source to which another link leads. So has a packet from a caller at a NodePort, if the tunnel leads to the
// whole internet. On a link without addresses, as a tunnel and the end of the pair are, the loose check is as strict as
// the other (__fib_validate_source). For a link, the kernel uses the larger of two values: the link's own value, and
// the value for all links. A new link has the default: an operator or another program may delete the pair, and repair
// puts it back.
func (p *pod) anySource() (objects []nl.Object) {
	for _, link := range slices.Concat([]string{"all", "default", Link4}, p.links) {
		objects = append(objects, nl.Sysctl{Key: "net/ipv4/conf/" + link + "/rp_filter", Value: "0"})
	}
	return objects
}

// untracked are chains that let the connection tracker leave out the tunnel's own packets. These are in UDP, and no
// rule asks for their connections. Each connection in the tunnel has a UDP port of its own, so each of its ends would
// make two entries for it beside its own. A client knows what the tunnel sends by the gateways, a router by its own
// address. With the service loop masquerade, a client's packets come back by its pair on their way to a router. The
// client tracks these, to translate them.
func (p *pod) untracked(families []nl.Family, sent func(nl.Family) nl.Term) (chains []nl.Chain) {
	const raw = -300
	in := nl.Chain{Name: "tunnel_in", Type: "filter", Hook: "prerouting", Priority: raw}
	out := nl.Chain{Name: "tunnel_out", Type: "filter", Hook: "output", Priority: raw}
	for _, f := range families {
		udp := nl.DPort("udp", p.port, p.port)
		in.Rules = append(in.Rules, nl.NFRule{udp, nl.DAddr(single(p.addr(f))), nl.Notrack()})
		out.Rules = append(out.Rules, nl.NFRule{udp, sent(f), nl.Notrack()})
	}
	if len(families) == 0 {
		return nil
	}
	return []nl.Chain{in, out}
}
