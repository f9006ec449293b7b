// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A pair is the veth pair of a pod and the addresses behind it.
type pair struct {
	veth  nl.Veth
	addrs []netip.Addr
	mtu   int    // of the pod's link to the VPC
	loop  string // how the pod reaches a backend of a service: redirect, masquerade, or not at all
}

func newPair(r *plugin.Request[Config], s *scene) pair {
	host, pod := macs(r.Network, r.Attachment)
	return pair{
		veth: nl.Veth{
			Name: vethName(r.Network, r.Attachment), MAC: host,
			Peer: r.Config.ContainerInterface, PeerMAC: pod, PeerNS: s.pod,
			MTU: cmp.Or(r.Config.MTU, s.node.mtu), Group: nl.OwnGroup, Alias: alias(r),
		},
		addrs: addrsOf(r.Prev),
		mtu:   s.podMTU,
	}
}

func addrsOf(prev *types100.Result) []netip.Addr {
	var all []netip.Addr
	for _, c := range prev.IPs {
		if a, ok := netip.AddrFromSlice(c.Address.IP); ok && !slices.Contains(all, a.Unmap()) {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// first is the pod's first address of a family.
func (p pair) first(v6 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(p.addrs, func(a netip.Addr) bool { return a.Is6() == v6 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return p.addrs[i], true
}

// wiring is what an ADD does for one pod, once there is the veth pair.
func wiring(r *plugin.Request[Config], p pair, n node, table uint32, host, pod *nl.NS) nl.Wiring {
	var w nl.Wiring
	for _, o := range slices.Concat(podLoop(r, p), podSysctls(r.Config, p), podRoutes(r, p, n)) {
		w = append(w, nl.Step{NS: pod, Object: o})
	}
	for _, o := range slices.Concat(hostRoutes(p, n), loopRoutes(r, p, table)) {
		w = append(w, nl.Step{NS: host, Object: o})
	}
	return w
}

func podSysctls(c Config, p pair) (objects []nl.Object) {
	if _, v6 := p.first(true); v6 {
		objects = append(objects, nl.Sysctl{Key: conf6(c.ContainerInterface) + "disable_ipv6", Value: "0"})
	}
	return objects
}

// podRoutes lead to the addresses of the node, and everywhere else by the primary one.
func podRoutes(r *plugin.Request[Config], p pair, n node) (objects []nl.Object) {
	dev := r.Config.ContainerInterface
	for _, a := range n.addrs {
		if _, has := p.first(a.Is6()); has {
			objects = append(objects,
				nl.Neigh{Addr: a, MAC: p.veth.MAC, Dev: dev},
				nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: dev, Protocol: nl.RouteProtocol})
		}
	}
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	_, v4 := p.first(false)
	if a, ok := n.primary(false); ok && v4 && !slices.Contains(destinations(r.Prev), all) {
		objects = append(objects, nl.Route{Dst: all, Via: a, Dev: dev, Protocol: nl.RouteProtocol})
	}
	return objects
}

// hostRoutes lead to the pod, from the node's primary address: the veth has none, and
// the kernel would take the first that it finds on any link.
func hostRoutes(p pair, n node) (objects []nl.Object) {
	objects = append(objects, nl.Sysctl{Key: conf4(p.veth.Name) + "send_redirects", Value: "0"})
	for _, a := range p.addrs {
		src, _ := n.primary(a.Is6())
		objects = append(objects,
			nl.Neigh{Addr: a, MAC: p.veth.PeerMAC, Dev: p.veth.Name},
			nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: p.veth.Name, Src: src, Protocol: nl.RouteProtocol, Replace: true})
	}
	return objects
}

// destinations are those of a result's routes, each once.
func destinations(prev *types100.Result) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range prev.Routes {
		a, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if p := netip.PrefixFrom(a.Unmap(), bits).Masked(); ok && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// table is the number of the table for the link of an index: different for
// different indices, and never one of the tables that every host has, 253 to 255.
func table(start uint32, index int) uint32 {
	t := start + uint32(index)
	if start <= unix.RT_TABLE_LOCAL && t >= unix.RT_TABLE_DEFAULT {
		t += unix.RT_TABLE_LOCAL - unix.RT_TABLE_DEFAULT + 1
	}
	return t
}

// tableOf is the table of a link on the host. A node that has made pods for long
// comes to indices in the ten thousands, and so to numbers that others use, such
// as 10001 and on, of amazon-ec2-net-utils: a table in which somebody has routes
// is passed over.
func tableOf(host *nl.NS, c Config, link string) (uint32, error) {
	l, err := host.LinkByName(link)
	if err != nil {
		return 0, err
	}
	const step, tries = 1 << 24, 8
	t := table(c.start, l.Index)
	for range tries {
		routes, err := host.Routes(nl.RouteFilter{Table: t})
		if err != nil {
			return 0, err
		}
		if !slices.ContainsFunc(routes, func(r nl.Route) bool { return r.Dev != link }) {
			return t, nil
		}
		t += step
	}
	return 0, fmt.Errorf("table %d and %d more are in use by others: set routeTableStart", table(c.start, l.Index), tries-1)
}

// result is prevResult with both ends of the pair for further interfaces.
func result(r *plugin.Request[Config], p pair) *types100.Result {
	res := *r.Prev
	res.Interfaces = append(slices.Clone(r.Prev.Interfaces),
		&types100.Interface{Name: p.veth.Name, Mac: p.veth.MAC, Mtu: p.veth.MTU},
		&types100.Interface{Name: p.veth.Peer, Mac: p.veth.PeerMAC, Mtu: p.veth.MTU, Sandbox: r.NetNS})
	return &res
}
