// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// wiring is what an ADD does for one pod, once there is the veth pair.
func wiring(r *plugin.Request[Config], p pair, n node, table uint32, host, pod *nl.NS) nl.Wiring {
	inPod := slices.Concat(
		podSysctls(r.Config, p),
		// The filters for what goes out come before those for what comes in: only the former
		// give a link the kind of qdisc that serves both.
		metadataBlock(r, p), r.Config.RuntimeConfig.Bandwidth.objects(r),
		podLoop(r, p),
		podRoutes(r, p, n), podCallers(r, p, n))
	onHost := slices.Concat(hostRoutes(p, n), loopRoutes(r, p, table))
	w := make(nl.Wiring, 0, len(inPod)+len(onHost))
	for _, o := range inPod {
		w = append(w, nl.Step{NS: pod, Object: o})
	}
	for _, o := range onHost {
		w = append(w, nl.Step{NS: host, Object: o})
	}
	return w
}

func podSysctls(c Config, p pair) (objects []nl.Object) {
	if p.has(true) {
		objects = append(objects, nl.Sysctl{Key: conf6(c.ContainerInterface) + "disable_ipv6", Value: "0"})
	}
	return objects
}

// podRoutes lead to the addresses of the node, to what is reached by it, and everywhere
// else by its primary one, or by the pod's own gateway.
func podRoutes(r *plugin.Request[Config], p pair, n node) (objects []nl.Object) {
	dev := r.Config.ContainerInterface
	for _, a := range n.addrs {
		// An address of the pod's own may be there: amazon-ec2-net-utils gives a link all
		// addresses of its ENI.
		if p.has(a.Is6()) && !slices.Contains(p.addrs, a) {
			objects = append(objects,
				nl.Neigh{Addr: a, MAC: p.veth.MAC, Dev: dev},
				nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: dev, Protocol: nl.RouteProtocol})
		}
	}
	for _, dst := range p.byHost(r.Config) {
		// The route to an address of the node's own is there already.
		if a, ok := n.primary(dst.Addr().Is6()); ok && !(dst.IsSingleIP() && slices.Contains(n.addrs, dst.Addr())) {
			objects = append(objects, nl.Route{Dst: dst, Via: a, Dev: dev, Protocol: nl.RouteProtocol})
		}
	}
	return append(objects, defaultRoutes(r, p, n)...)
}

// everywhere is the destination of a family's default route.
func everywhere(v6 bool) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// defaultRoutes are those that prevResult lacks. Of IPv6 it has one, by the ENI.
func defaultRoutes(r *plugin.Request[Config], p pair, n node) (objects []nl.Object) {
	for _, v6 := range p.families() {
		if slices.Contains(destinations(r.Prev), everywhere(v6)) {
			continue
		}
		route := nl.Route{Dst: everywhere(v6), Protocol: nl.RouteProtocol}
		switch a, ok := n.primary(v6); {
		case r.Config.DefaultRoute == byVPC:
			route.Via, route.Dev, route.OnLink = plugin.Gateway(r.Prev, v6), r.IfName, !v6 // whether it is in the address' subnet or not
		case ok && !v6:
			route.Via, route.Dev = a, r.Config.ContainerInterface
		default:
			continue
		}
		objects = append(objects, route)
	}
	return objects
}

// byENI are the destinations that the pod reaches by its ENI.
func byENI(r *plugin.Request[Config], p pair) []netip.Prefix {
	all := destinations(r.Prev)
	for _, v6 := range p.families() {
		if r.Config.DefaultRoute == byVPC && !slices.Contains(all, everywhere(v6)) {
			all = append(all, everywhere(v6))
		}
	}
	return all
}

// hostRoutes lead to the pod, from the node's primary address: the veth has none, and
// the kernel would take the first that it finds on any link.
func hostRoutes(p pair, n node) (objects []nl.Object) {
	objects = append(objects, nl.Sysctl{Key: conf4(p.veth.Name) + "send_redirects", Value: "0"})
	if p.has(true) {
		objects = append(objects, nl.Sysctl{Key: conf6(p.veth.Name) + "disable_ipv6", Value: "0"})
	}
	for _, a := range p.addrs {
		src, _ := n.primary(a.Is6())
		route := nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: p.veth.Name, Src: src, Protocol: nl.RouteProtocol, Replace: true}
		objects = append(objects, nl.Neigh{Addr: a, MAC: p.veth.PeerMAC, Dev: p.veth.Name}, route)
		if a.Is4() {
			objects = append(objects, spare(route))
		}
	}
	return objects
}

// spare is the route to a pod for when the first has gone: with an address the kernel takes
// the routes of IPv4 that are from it, and DHCP, or a restart of what configures the link,
// may take the node's address and give it again. Until the first is put back (see [Mend])
// the kernel chooses the source.
func spare(route nl.Route) nl.Route {
	route.Src, route.Metric = netip.Addr{}, 4096
	return route
}

// destinations are those of a result's routes, each once.
func destinations(prev *types100.Result) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range prev.Routes {
		if dst, ok := plugin.Prefix(r.Dst); ok && !slices.Contains(all, dst.Masked()) {
			all = append(all, dst.Masked())
		}
	}
	return all
}

// result is prevResult with both ends of the pair for further interfaces.
func result(r *plugin.Request[Config], p pair) *types100.Result {
	res := *r.Prev
	res.Interfaces = append(slices.Clone(r.Prev.Interfaces),
		&types100.Interface{Name: p.veth.Name, Mac: p.veth.MAC, Mtu: p.veth.MTU},
		&types100.Interface{Name: p.veth.Peer, Mac: p.veth.PeerMAC, Mtu: p.veth.MTU, Sandbox: r.NetNS})
	return &res
}
