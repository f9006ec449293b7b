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

// A slave is a NIC that an ADD makes in the pod: an ipvlan slave, or the ENI's own link if the pod gets the whole ENI.
type slave struct {
	link      nl.IPVlan
	ips       []*types100.IPConfig
	table     uint32 // routing table of a further NIC; 0: the pod's first NIC, which uses the main table
	hasOthers bool   // the pod has other NICs: see ownARPOnly
	mac       string // the ENI's MAC address if the ENI's own link goes into the pod; otherwise empty
}

func wiring(slaves []slave, prev *types100.Result, node, pod *nl.NS) (w nl.Wiring) {
	for _, s := range slaves {
		w = append(w, s.wiring(prev, node, pod)...)
	}
	return w
}

func (s slave) wiring(prev *types100.Result, node, pod *nl.NS) nl.Wiring {
	addrs := prefixes(s.ips)
	v6 := slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() })
	s.link.Down = v6
	for _, p := range addrs {
		s.link.Only = append(s.link.Only, p.Addr())
	}
	w := append(s.guard(node, nl.Guard{Link: s.link.Master}), nl.Step{NS: node, Object: s.linkObject()})
	add := func(o nl.Object) { w = append(w, nl.Step{NS: pod, Object: o}) }
	conf := "net/ipv6/conf/" + s.link.Name + "/"
	deaf := s.noRA()
	if v6 {
		// The pod reaches its own addresses through lo, on which a runtime may have disabled IPv6, too.
		add(nl.Sysctl{Key: "net/ipv6/conf/lo/disable_ipv6", Value: "0"})
		add(nl.Sysctl{Key: conf + "disable_ipv6", Value: "0"})
		// Detection of duplicates would make the pod wait for one second. There are no duplicates: EC2 assigns an
		// address to only one ENI, and ipvlan lets only one slave have it. The link-local addresses of an ENI's slaves
		// differ, because the kernel makes them from the MAC address and the slave's dev_id (addrconf_ifid_eui48).
		add(nl.Sysctl{Key: conf + "accept_dad", Value: "0"})
		add(deaf)
		add(nl.Up{Dev: s.link.Name})
	} else {
		add(deaf)
	}
	if s.hasOthers {
		add(ownARPOnly(s.link.Name))
	}
	for _, p := range addrs {
		add(nl.Addr{Prefix: p, Dev: s.link.Name, NoDAD: p.Addr().Is6(), Apart: s.table != 0})
	}
	if s.table != 0 {
		for _, o := range s.further() {
			add(o)
		}
		return w
	}
	own := &types100.Result{IPs: s.ips, Routes: prev.Routes}
	for _, r := range resultRoutes(own, addrs, s.link.Name) {
		add(r)
	}
	return w
}

// guard returns the object that an ENI's link needs before its first slave, or nil if the pod gets that link itself.
func (s slave) guard(node *nl.NS, g nl.Guard) nl.Wiring {
	if s.mac != "" {
		return nil
	}
	return nl.Wiring{{NS: node, Object: g}}
}

// noRA returns the sysctl that makes the NIC ignore router advertisements. The pod must have only the routes of the
// result, and none from routers, or from pods that claim to be routers. Router advertisements would even give IPv6
// addresses to a NIC that has none.
func (s slave) noRA() nl.Sysctl {
	v6 := slices.ContainsFunc(prefixes(s.ips), func(p netip.Prefix) bool { return p.Addr().Is6() })
	return nl.Sysctl{Key: "net/ipv6/conf/" + s.link.Name + "/accept_ra", Value: "0", Optional: !v6}
}

// linkObject returns the link: a slave of the ENI's link, or that link itself.
func (s slave) linkObject() nl.Object {
	if s.mac == "" {
		return s.link
	}
	return nl.MovedLink{Name: s.link.Name, MAC: s.mac, NS: s.link.NS, Home: s.link.Master, MTU: s.link.MTU,
		Group: nl.CardGroup(s.link.Group), Down: s.link.Down}
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

// resultRoutes returns the routes of a result, each once. All these routes use the link "dev". The routes to the
// subnets of addrs are left out, because the kernel adds them with the addresses.
func resultRoutes(prev *types100.Result, addrs []netip.Prefix, dev string) []nl.Route {
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
		k.OnLink = isOutside(k.Via, addrs)
		connected := cmp.Or(k.Table, unix.RT_TABLE_MAIN) == unix.RT_TABLE_MAIN &&
			slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Masked() == k.Dst })
		same := func(o nl.Route) bool { return o.Dst == k.Dst && o.Table == k.Table && o.Metric == k.Metric }
		if !connected && !slices.ContainsFunc(all, same) {
			all = append(all, k)
		}
	}
	return all
}

// isOutside reports whether a gateway is outside of the subnets of all addresses. An IPv6 link-local gateway is never
// outside, because link-local addresses are valid on every link.
func isOutside(gw netip.Addr, addrs []netip.Prefix) bool {
	return gw.IsValid() && !(gw.Is6() && gw.IsLinkLocalUnicast()) &&
		!slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Contains(gw) })
}

// result returns prevResult with the links of the NICs as its interfaces. The result of a further attachment has no
// routes, because its routes are not in the pod's main table.
func result(r *plugin.Request[Config], slaves []slave, links []nl.Link) *types100.Result {
	res := &types100.Result{DNS: r.Prev.DNS}
	if slaves[0].table == 0 {
		res.Routes = r.Prev.Routes
	}
	for i, l := range links {
		res.Interfaces = append(res.Interfaces, &types100.Interface{Name: l.Name, Mac: l.MAC, Mtu: l.MTU,
			Sandbox: r.NetNS})
		for _, c := range slaves[i].ips {
			ip := *c
			ip.Interface = new(i)
			res.IPs = append(res.IPs, &ip)
		}
	}
	if own := r.Config.DNS; !own.IsEmpty() {
		res.DNS = own
	}
	return res
}
