// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Lost lists objects that serve all pods of a network, and that are missing on the node. Without these objects, a CHECK
// of the pods fails. Many firewalls begin with "nft flush ruleset". This command deletes our table, and then no pod
// reaches Services or the internet. Lost also lists missing routes to pods: when the node loses an address, the kernel
// removes the routes that have this address as their source. For example, DHCP may have removed the address and added
// it again. If the node has no pods of the network, Lost lists nothing. The configuration must be validated.
func Lost(node *nl.NS, network string, c Config) (nl.Wiring, error) {
	veths, err := pairsOf(node, network)
	if len(veths) == 0 || err != nil {
		return nil, err
	}
	n, err := readNode(node, &c)
	if err != nil {
		return nil, err
	}
	routes, err1 := node.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	rules, err2 := node.Rules()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	var lost nl.Wiring
	r := &request{Request: &plugin.Request[Config]{Network: network, Config: c}, nodeNS: node,
		others: loopDstsOf(veths, routes, rules)}
	slaves := false
	for _, l := range veths {
		slaves = slaves || !nl.IsRouted(l.Group)
	}
	if slaves && checkNodeWiring(r, n, false) != nil {
		lost = slices.DeleteFunc(nodeWiring(r, n), func(s nl.Step) bool { return (nl.Wiring{s}).Check() == nil })
	}
	for _, route := range lostRoutes(routes, veths, n) {
		// Pods may have come and gone while the routes were listed.
		if _, err := node.LinkByName(route.Dev); err == nil && route.Check(node) != nil {
			lost = append(lost, nl.Step{NS: node, Object: route})
		}
	}
	return lost, nil
}

// pairsOf returns the node's ends of a network's pairs. The keys of the map are the names of these ends.
func pairsOf(node *nl.NS, network string) (veths map[string]nl.Link, err error) {
	links, err := node.Links()
	veths = map[string]nl.Link{}
	for _, l := range links {
		if isVeth(l, network) {
			veths[l.Name] = l
		}
	}
	return veths, err
}

// isVeth reports whether a link is the node's end of a pair, and the pair's pod is in the network.
func isVeth(l nl.Link, network string) bool {
	return l.Kind == "veth" && nl.IsPair(l.Group) && networkInAlias(l.Alias) == network
}

// Repair adds the objects that [Lost] lists. Without Repair, the next ADD would add them. Repair returns the objects
// that it has added, even if it could not add all. The error names each object that Repair could not add. Repair may
// run at the same time as ADDs: each accepts the objects that the other has added.
func Repair(node *nl.NS, network string, c Config) (done nl.Wiring, failed error) {
	w, err := Lost(node, network, c)
	done, failed = installEach(w)
	return done, errors.Join(err, failed)
}

// installEach adds all objects that it can add, and returns them. The error names each object that it could not add.
func installEach(w nl.Wiring) (done nl.Wiring, failed error) {
	for _, step := range w {
		if err := (nl.Wiring{step}).Add(); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		done = append(done, step)
	}
	return done, failed
}

// install adds objects step by step. If a step fails, the objects of earlier steps stay, because other pods may rely on
// them already.
func install(w nl.Wiring) error {
	for _, step := range w {
		if err := (nl.Wiring{step}).Add(); err != nil {
			return err
		}
	}
	return nil
}

// checkNodeWiring returns an error if the node lacks objects of checkedWiring that are not minor. The node's primary
// address may have changed since an ADD made the objects. checkNodeWiring also accepts objects with the older primary
// address, if the node still has this address. If anyConfig is true, checkNodeWiring also accepts tables of another
// configuration.
func checkNodeWiring(r *request, n node, anyConfig bool) error {
	n, err := n.asInTable(r)
	if err != nil {
		return err
	}
	w := slices.DeleteFunc(checkedWiring(nodeWiring(r, n), anyConfig), isMinor)
	return errors.Join(w.Check(), checkClosedChain(r))
}

// lostRoutes returns the routes to pods that the main table has lost. The kernel removed these routes when the node
// lost the address that is their source. The kernel removes such routes even if DHCP adds the address again at once.
// lostRoutes also returns the routes of IPv6 that lost only their source (fib_sync_down_addr, rt6_remove_prefsrc).
//
// The routes in a pod's own table remain, and show the pod's addresses. If two pods had the same address, the later pod
// has the address now. The table of the later pod has the higher number.
func lostRoutes(routes []nl.Route, veths map[string]nl.Link, n node) (lost []nl.Route) {
	slices.SortStableFunc(routes, func(a, b nl.Route) int { return cmp.Compare(b.Table, a.Table) })
	main := map[netip.Prefix]nl.Route{}
	for _, r := range routes {
		if r.Table == nl.MainTable && !main[r.Dst].Src.IsValid() { // otherwise r is the second route
			main[r.Dst] = r
		}
	}
	for _, r := range routes {
		a := r.Via
		if !a.IsValid() {
			a = r.Dst.Addr()
		}
		f := nl.FamilyOf(a)
		src := n.primaryAddr(f)
		if _, ours := veths[r.Dev]; !ours || r.Table == nl.MainTable || a == loopVia(f) || !src.IsValid() {
			continue
		}
		dst := nl.HostPrefix(a)
		if is, there := main[dst]; !there || !is.Src.IsValid() {
			main[dst] = nl.Route{Dst: dst, Dev: r.Dev, Src: src, Protocol: nl.RouteProtocol, Replace: there}
			lost = append(lost, main[dst])
		}
	}
	return lost
}
