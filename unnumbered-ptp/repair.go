// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Lost lists the objects that serve all pods of a network and are missing on the node. Without these objects, a CHECK
// of the pods fails. Many firewalls begin with "nft flush ruleset", which deletes our table. Then no pod reaches
// Services or the internet. Lost also lists missing routes to pods. The kernel removes a route when the node loses the
// route's source, for example because DHCP removes the address and adds it again. Lost also lists sysctls that CHECK
// ignores, if pods lose packets because of their values. If the network has no pods, Lost lists nothing. The
// configuration must be validated.
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
	if slaves {
		whole := checkNodeWiring(r, n, false) == nil
		lost = slices.DeleteFunc(nodeWiring(r, n), func(s nl.Step) bool {
			return whole && !r.isHarmful(s) || (nl.Wiring{s}).Check() == nil
		})
	}
	for _, route := range lostRoutes(routes, veths, n) {
		// since the routes were read, the pod may have ended, or an ADD may have added the route
		if _, err := node.LinkByName(route.Dev); err == nil && route.Check(node) != nil {
			lost = append(lost, nl.Step{NS: node, Object: route})
		}
	}
	return lost, nil
}

// isHarmful reports whether an object is a minor sysctl of the node (see isMinor), and whether pods lose packets if the
// sysctl has another value.
func (r *request) isHarmful(s nl.Step) bool {
	k, is := s.Object.(nl.Sysctl)
	return is && isMinor(s) && k.Key != ratelimit6 &&
		(!strings.HasSuffix(k.Key, "/rp_filter") || ChecksStrictly(r.nodeNS.Sysctl, r.Config.HostInterface))
}

// ChecksStrictly reports whether the kernel drops each packet that arrives through a link, if the route to the packet's
// source uses another link. The kernel uses the larger of two values of rp_filter: that of the link, and that of "all".
// Only the value 1 is the strict check.
func ChecksStrictly(sysctl func(key string) (string, error), link string) bool {
	all, _ := sysctl(conf4("all") + "rp_filter")
	own, _ := sysctl(conf4(link) + "rp_filter")
	return max(all, own) == "1"
}

// pairsOf returns the node's ends of a network's pairs, by name.
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

func isVeth(l nl.Link, network string) bool {
	return l.Kind == "veth" && nl.IsPair(l.Group) && networkInAlias(l.Alias) == network
}

// Repair adds the objects that [Lost] lists. It returns the objects that it has added, and an error that names those
// that it could not add. It may run at the same time as ADDs, because Repair and ADD accept each other's objects.
func Repair(node *nl.NS, network string, c Config) (done nl.Wiring, failed error) {
	w, err := Lost(node, network, c)
	done, failed = installEach(w)
	return done, errors.Join(err, failed)
}

// installEach adds and returns all objects that it can add. The error names the objects that it cannot add.
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

// install adds objects step by step. If a step fails, the earlier objects stay, because other pods may rely on them
// already.
func install(w nl.Wiring) error {
	for _, step := range w {
		if err := (nl.Wiring{step}).Add(); err != nil {
			return err
		}
	}
	return nil
}

// checkNodeWiring returns an error if the node lacks objects of checkedWiring. It ignores minor objects (see isMinor).
// It also accepts objects with an older primary address that the node still has. With anyConfig, it also accepts tables
// of another configuration.
func checkNodeWiring(r *request, n node, anyConfig bool) error {
	n, err := n.asInTable(r)
	if err != nil {
		return err
	}
	w := slices.DeleteFunc(checkedWiring(nodeWiring(r, n), anyConfig), isMinor)
	return errors.Join(w.Check(), checkClosedChain(r))
}

// lostRoutes returns the routes to pods that the main table has lost. The kernel removes a route when the node loses
// the route's source, even if DHCP adds the address again at once. From an IPv6 route, the kernel removes only the
// source (fib_sync_down_addr, rt6_remove_prefsrc). lostRoutes also returns IPv6 routes without a source.
//
// The routes in the pods' own tables remain, and show the pods' addresses. If the tables of two pods show the same
// address, the later pod has the address now, and its table has the higher number.
func lostRoutes(routes []nl.Route, veths map[string]nl.Link, n node) (lost []nl.Route) {
	slices.SortStableFunc(routes, func(a, b nl.Route) int { return cmp.Compare(b.Table, a.Table) })
	main := map[netip.Prefix]nl.Route{}
	for _, r := range routes {
		if r.Table == nl.MainTable && !main[r.Dst].Src.IsValid() { // a route with a source stays: it is the first route
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
