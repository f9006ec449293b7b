// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// These marks and [RouteProtocol] identify our objects on a node.
const (
	OwnGroup = 72                   // of the node's ends of veth pairs: see 'ip link show group 72'
	OwnTable = "cni_ipvlan_vpc_k8s" // of nftables, in the family inet, on the node and in pods
)

// OwnTableOf is the name of a network's table on the node. For the network that the shipped configurations name, the
// table's name is [OwnTable]. Each network has its own table, so that two networks with different configurations do not
// replace each other's table. A dash in the network's name becomes an underscore. A name with underscores or dots stays
// as it is, behind a dot.
func OwnTableOf(network string) string {
	if strings.ContainsAny(network, "_.") {
		return OwnTable + "." + network
	}
	name := strings.ReplaceAll(network, "-", "_")
	if name == OwnTable {
		return OwnTable
	}
	return OwnTable + "_" + name
}

// isOwnTable reports whether a table of this name is ours, of this or an earlier release.
func isOwnTable(name string) bool {
	rest, own := strings.CutPrefix(name, OwnTable)
	return own && (rest == "" || rest[0] == '_' || rest[0] == '.')
}

// RemoveShared removes from the namespace the objects that serve all pods. These are our tables of nftables, our rules,
// the routes and addresses for routed pods, and the programs that pods share. RemoveShared removes them only if the
// kernel shows in this call that no pod is left. Otherwise RemoveShared returns false. Each pod has a veth pair and
// routes. So RemoveShared looks for a pair, and for a route of ours to a pod.
//
// RemoveShared never removes objects that belong to one pod. The veth pair and the routes of a pod end with the pod's
// namespace. If they exist, a pod uses them.
//
// An ADD makes the pair first, and then checks the objects that serve all pods. So either RemoveShared finds the pair,
// or the ADD finds that objects are missing. If an ADD and RemoveShared run at the same time, there may be a pair after
// the removal. Then the error is [ErrPods], and the caller must repair the removed objects.
func (n *NS) RemoveShared() (removed bool, err error) {
	return removeUnused(n.Vacant, func() (Wiring, error) { return n.shared(isOwnTable, isOwnRule) }, unpin)
}

// RemoveRouted is [NS.RemoveShared] for the objects that serve only routed pods. RemoveRouted looks only for a pair of
// a routed pod. If the node has no table for routed pods, RemoveRouted returns after one request.
func (n *NS) RemoveRouted() (removed bool, err error) {
	tables, err := n.ownTables(isRoutedTable)
	if err != nil || len(tables) == 0 {
		return false, err
	}
	return removeUnused(n.unrouted, func() (Wiring, error) { return n.shared(isRoutedTable, isRoutedRule) },
		func() error { return nil })
}

// removeUnused calls the function unused. If unused returns nil, removeUnused removes the objects that the function
// list returns, and calls the function further. If unused returns [ErrPods], removeUnused removes nothing, and returns
// no error. After the removal, removeUnused calls unused again and returns its error, also [ErrPods]. removed reports
// that list returned objects.
func removeUnused(unused func() error, list func() (Wiring, error), further func() error) (removed bool, err error) {
	if err := unused(); err != nil {
		if errors.Is(err, ErrPods) {
			err = nil
		}
		return false, err
	}
	shared, err := list()
	if err != nil {
		return false, err
	}
	if err := errors.Join(shared.Del(), further()); err != nil {
		return len(shared) > 0, err
	}
	return len(shared) > 0, unused()
}

// ErrPods reports that the node has pods: links or routes of ours lead to them.
var ErrPods = errors.New("there are pods on the node")

// Vacant returns nil if the kernel shows that there is no pod. If the kernel could not complete a list, Vacant returns
// an error, because such a list proves nothing.
func (n *NS) Vacant() error {
	if err := n.noPair(IsPair); err != nil {
		return err
	}
	routes, err := n.exactRoutes(RouteFilter{Protocol: RouteProtocol})
	if i := slices.IndexFunc(routes, func(r kernelRoute) bool { return !ofENI(r.Route) }); i >= 0 {
		err = fmt.Errorf("%w: %s", ErrPods, routes[i])
	}
	return err
}

// unrouted returns nil if the kernel shows that there is no routed pod.
func (n *NS) unrouted() error { return n.noPair(IsRouted) }

// RoutedPairs lists the node's ends of the pairs of an ENI's routed pods. eni is the index of the ENI's link. If the
// kernel could not complete the list, RoutedPairs returns an error.
func (n *NS) RoutedPairs(eni int) ([]Link, error) {
	links, err := n.exactLinks()
	return slices.DeleteFunc(links, func(l Link) bool { return l.Group != RoutedGroup(eni) }), err
}

// noPair asks the function is about the group of each link. If the function returns true for a group, the error is
// [ErrPods].
func (n *NS) noPair(is func(group uint32) bool) error {
	links, err := n.exactLinks()
	if i := slices.IndexFunc(links, func(l Link) bool { return is(l.Group) }); err == nil && i >= 0 {
		err = fmt.Errorf("%w: %s is in group %d", ErrPods, links[i].Name, links[i].Group)
	}
	return err
}

// ofENI reports whether a route of ours serves all routed pods of an ENI.
func ofENI(r Route) bool {
	_, is := OfRoutedTable(r.Table)
	return is
}

// shared lists the addresses and routes that serve only routed pods. It also lists the tables and rules for which the
// functions table and rule return true.
func (n *NS) shared(table func(name string) bool, rule func(Rule) bool) (Wiring, error) {
	rules, err1 := n.Rules()
	tables, err2 := n.ownTables(table)
	routes, err3 := n.Routes(RouteFilter{Protocol: RouteProtocol})
	addrs, err4 := n.Addrs("")
	var w Wiring
	for _, a := range addrs {
		if a.Prefix == routedAddr() {
			w = append(w, Step{n, a})
		}
	}
	for _, r := range routes {
		if ofENI(r) {
			w = append(w, Step{n, r})
		}
	}
	for _, r := range rules {
		if rule(r) {
			w = append(w, Step{n, r})
		}
	}
	for _, t := range tables {
		w = append(w, Step{n, t})
	}
	return w, errors.Join(err1, err2, err3, err4)
}

// isOwnRule reports whether a rule is ours.
func isOwnRule(r Rule) bool { return r.Protocol == RouteProtocol }

// isRoutedRule reports whether a rule is ours and serves only routed pods. Such a rule leads to the table of an ENI, or
// has Goto or Nop. Or the rule is about all packets, or about all packets that the node itself sends. No other rule of
// ours has one of these properties. A rule that drops packets which arrive by an ENI has none of them. Such a rule
// stays as long as the ENI's link, because the VPC still delivers packets for pods that have ended.
func isRoutedRule(r Rule) bool {
	_, ofENI := OfRoutedTable(r.Table)
	ofAll := (r.IIF == "" || r.IIF == "lo" && !r.Not) && !r.marked()
	return isOwnRule(r) && (ofENI || ofAll || r.Goto != 0 || r.Nop)
}

// ownTables lists our tables for whose names the function such returns true.
func (n *NS) ownTables(such func(name string) bool) (own []Table, err error) {
	all, err := n.Tables()
	for _, t := range all {
		if family, name, _ := strings.Cut(t, " "); such(name) && (family == "inet" || family == "arp") {
			own = append(own, Table{Family: family, Name: name})
		}
	}
	return own, err
}
