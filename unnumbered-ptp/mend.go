// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Lost lists what the node has lost of what serves all pods of a network, if a CHECK of
// them would miss any of it: "nft flush ruleset", which is what many a firewall begins
// with, takes the table, and with it services and the internet of every pod. And it lists
// the routes to pods that have gone with the node's address, as DHCP may take that and give
// it again. A node without pods of the network has lost nothing. The configuration is to be
// validated.
func Lost(host *nl.NS, network string, c Config) (nl.Wiring, error) {
	links, err := host.Links()
	if err != nil {
		return nil, err
	}
	veths := map[string]bool{}
	for _, l := range links {
		if l.Kind == "veth" && l.Group == nl.OwnGroup && networkOf(l.Alias) == network {
			veths[l.Name] = true
		}
	}
	if len(veths) == 0 {
		return nil, nil
	}
	n, err := readNode(host, c)
	if err != nil {
		return nil, err
	}
	routes, err := host.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	if err != nil {
		return nil, err
	}
	var lost nl.Wiring
	r := &plugin.Request[Config]{Network: network, Config: c, Prev: known(routes, veths)}
	if serves(r, n, host) != nil {
		lost = slices.DeleteFunc(nodeWiring(r, n, host), func(s nl.Step) bool { return (nl.Wiring{s}).Check() == nil })
	}
	for _, route := range withoutSource(routes, veths, n) {
		// Pods may have come and gone while the routes were listed.
		if _, err := host.LinkByName(route.Dev); err == nil && route.Check(host) != nil {
			lost = append(lost, nl.Step{NS: host, Object: route})
		}
	}
	return lost, nil
}

// Mend puts back what is [Lost], as the next ADD would, and returns what it has put back,
// also where it could not put back all, of which the error says each part. It may run beside
// ADDs: either finds what the other has done.
func Mend(host *nl.NS, network string, c Config) (done nl.Wiring, failed error) {
	w, failed := Lost(host, network, c)
	for _, step := range w {
		if err := install(nl.Wiring{step}); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		done = append(done, step)
	}
	if failed == nil {
		failed = delFolded(host, network)
	}
	return done, failed
}

// delFolded deletes the table that an earlier release has made for a network whose table is
// called otherwise by now, and is there; unless it is, or was, that of another network with
// pods. One that is about to get its first has to be mended, should it have found the older
// table to be right.
func delFolded(host *nl.NS, network string) error {
	folded, own := nl.FoldedTableOf(network), nl.OwnTableOf(network)
	if folded == own {
		return nil
	}
	tables, err := host.Tables()
	if err != nil || !slices.Contains(tables, "inet "+own) || !slices.Contains(tables, "inet "+folded) {
		return err
	}
	links, err := host.Links()
	if err != nil || slices.ContainsFunc(links, func(l nl.Link) bool {
		other := networkOf(l.Alias)
		return other != "" && other != network && nl.FoldedTableOf(other) == folded
	}) {
		return err
	}
	return nl.Wiring{{NS: host, Object: nl.Table{Family: "inet", Name: folded}}}.Del()
}

// install adds what serves all pods, one by one, because what one has done stays when
// another fails: other pods have come to rely on it.
func install(w nl.Wiring) error {
	for _, step := range w {
		if err := (nl.Wiring{step}).Add(); err != nil {
			return err
		}
	}
	return nil
}

// serves says what CHECK misses of what serves all pods. That may go by another of the node's
// addresses than the next ADD would.
func serves(r *plugin.Request[Config], n node, host *nl.NS) error {
	n, err := n.inTable(r, host)
	if err != nil {
		return err
	}
	return slices.DeleteFunc(lasting(nodeWiring(r, n, host)), minor).Check()
}

// known is what the node still knows of the results by which its pods were made: the
// destinations of their routes, which are those that it sends back to them.
func known(routes []nl.Route, veths map[string]bool) *types100.Result {
	var r types100.Result
	for _, route := range routes {
		if a := route.Dst.Addr(); route.Via.IsValid() && veths[route.Dev] {
			r.Routes = append(r.Routes, &types.Route{Dst: net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(route.Dst.Bits(), a.BitLen())}})
		}
	}
	return &r
}

// withoutSource returns the routes to pods that the kernel took when the node lost the
// address that they are from, be it that DHCP has given it again at once, and those of IPv6
// of which it took that address (fib_sync_down_addr, rt6_remove_prefsrc). Those in a pod's
// own table stay, and tell the pod's addresses. Of two pods that had the same one the later
// has it, whose table has the higher number.
func withoutSource(routes []nl.Route, veths map[string]bool, n node) (lost []nl.Route) {
	slices.SortStableFunc(routes, func(a, b nl.Route) int { return cmp.Compare(b.Table, a.Table) })
	main := map[netip.Prefix]nl.Route{}
	for _, r := range routes {
		if r.Table == nl.MainTable && !main[r.Dst].Src.IsValid() { // else r is the spare one
			main[r.Dst] = r
		}
	}
	for _, r := range routes {
		a := r.Via
		if !a.IsValid() {
			a = r.Dst.Addr()
		}
		src, ok := n.primary(a.Is6())
		if !veths[r.Dev] || r.Table == nl.MainTable || a == loopVia(a.Is6()) || !ok {
			continue
		}
		dst := netip.PrefixFrom(a, a.BitLen())
		if is, there := main[dst]; !there || !is.Src.IsValid() {
			main[dst] = nl.Route{Dst: dst, Dev: r.Dev, Src: src, Protocol: nl.RouteProtocol, Replace: there}
			lost = append(lost, main[dst])
		}
	}
	return lost
}
