// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"cmp"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// slave is the link of the pod.
func (c Config) slave(name string, master nl.Link, pod *nl.NS) nl.IPVlan {
	return nl.IPVlan{Name: name, Master: master.Name, NS: pod, Mode: c.Mode, MTU: c.MTU}
}

// wiring is all that an ADD makes: the slave, its addresses, and its routes.
func wiring(slave nl.IPVlan, prev *types100.Result, node, pod *nl.NS) nl.Wiring {
	addrs := prefixes(prev.IPs)
	v6 := slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() })
	slave.Down = v6
	w := nl.Wiring{{NS: node, Object: slave}}
	add := func(o nl.Object) { w = append(w, nl.Step{NS: pod, Object: o}) }
	if v6 {
		// The pod reaches its own addresses by lo. A runtime that disables IPv6 in the whole
		// namespace disables it on lo, too.
		add(nl.Sysctl{Key: "net/ipv6/conf/lo/disable_ipv6", Value: "0"})
		conf := "net/ipv6/conf/" + slave.Name + "/"
		add(nl.Sysctl{Key: conf + "disable_ipv6", Value: "0"})
		// All slaves have the MAC address of their master, and so the same link-local
		// address. Duplicate address detection would refuse it.
		add(nl.Sysctl{Key: conf + "accept_dad", Value: "0"})
		// The pod has the routes of the result, and none that routers advertise.
		add(nl.Sysctl{Key: conf + "accept_ra", Value: "0"})
		add(nl.Up{Dev: slave.Name})
	}
	for _, p := range addrs {
		add(nl.Addr{Prefix: p, Dev: slave.Name, NoDAD: p.Addr().Is6()})
	}
	for _, r := range routes(prev, addrs, slave.Name) {
		add(r)
	}
	return w
}

func prefixes(ips []*types100.IPConfig) []netip.Prefix {
	var all []netip.Prefix
	for _, c := range ips {
		if p, ok := plugin.Prefix(c.Address); ok && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// routes are the routes of a result, each once, without those to the subnets of the
// addresses: the kernel adds these with the addresses.
func routes(prev *types100.Result, addrs []netip.Prefix, dev string) []nl.Route {
	var all []nl.Route
	for _, r := range prev.Routes {
		dst, ok := plugin.Prefix(r.Dst)
		if !ok {
			continue
		}
		k := nl.Route{Dst: dst.Masked(), Dev: dev, MTU: r.MTU, Metric: r.Priority}
		if r.Table != nil {
			k.Table = uint32(*r.Table)
		}
		if k.Via, ok = plugin.Addr(r.GW); !ok {
			k.Via = plugin.Gateway(prev, dst.Addr())
		}
		k.OnLink = beyond(k.Via, addrs)
		connected := cmp.Or(k.Table, unix.RT_TABLE_MAIN) == unix.RT_TABLE_MAIN &&
			slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Masked() == k.Dst })
		same := func(o nl.Route) bool { return o.Dst == k.Dst && o.Table == k.Table && o.Metric == k.Metric }
		if !connected && !slices.ContainsFunc(all, same) {
			all = append(all, k)
		}
	}
	return all
}

// beyond reports whether a gateway is in none of the subnets of the addresses. The
// link-local addresses of IPv6 are on every link.
func beyond(gw netip.Addr, addrs []netip.Prefix) bool {
	return gw.IsValid() && !(gw.Is6() && gw.IsLinkLocalUnicast()) && !slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Contains(gw) })
}

// result is prevResult with the slave as its only interface, which has all addresses.
func result(r *plugin.Request[Config], l nl.Link) *types100.Result {
	res := &types100.Result{
		Interfaces: []*types100.Interface{{Name: l.Name, Mac: l.MAC, Mtu: l.MTU, Sandbox: r.NetNS}},
		Routes:     r.Prev.Routes,
		DNS:        r.Prev.DNS,
	}
	for _, c := range r.Prev.IPs {
		ip := *c
		ip.Interface = new(0)
		res.IPs = append(res.IPs, &ip)
	}
	if own := r.Config.DNS; !own.IsEmpty() {
		res.DNS = own
	}
	return res
}
