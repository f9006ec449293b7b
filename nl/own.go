// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// These marks and [RouteProtocol] identify what is ours on a node.
const (
	OwnGroup = 72                   // of the node's ends of veth pairs: see 'ip link show group 72'
	OwnTable = "cni_ipvlan_vpc_k8s" // of nftables, in the family inet, on the node and in pods
)

// OwnTableOf is the name of a network's table on the node. For the network that the shipped configurations name, the
// table's name is [OwnTable]. Each network has its own table, so that two networks with different configurations do not
// replace each other's. A dash in the network's name becomes an underscore. A name with underscores or dots stays as it
// is, behind a dot.
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

// isOwnTable reports whether a table of this name is a network's, of this or an earlier release.
func isOwnTable(name string) bool {
	rest, own := strings.CutPrefix(name, OwnTable)
	return own && (rest == "" || rest[0] == '_' || rest[0] == '.')
}

// RemoveShared removes the objects that serve all pods from the namespace: our tables of nftables, our rules, and the
// programs that pods share. RemoveShared removes nothing, and reports false, unless the kernel shows in this call that
// no pod is left. Only its veth pair serves a pod. So the proof is that there is no link and no route of ours.
//
// RemoveShared never removes what belongs to one pod. The veth pair and the routes of a pod end
// with its namespace. If they exist, a pod uses them.
//
// An ADD makes the pair first, and then checks what serves all pods. So either RemoveShared
// finds the pair, or the ADD finds what was removed. If both happen at once, a pair may be
// there afterwards. Then the error is [ErrPods], and the caller must repair what was removed.
func (n *NS) RemoveShared() (removed bool, err error) {
	return removeUnused(n.Vacant, func() (Wiring, error) { return n.shared(isOwnTable, isOwnRule) }, unpin)
}

// RemoveRouted is [NS.RemoveShared] for what serves routed pods alone. The proof is that there is no pair of a routed
// pod. The proof costs one request if the node has no table for routed pods.
func (n *NS) RemoveRouted() (removed bool, err error) {
	tables, err := n.ownTables(isRoutedTable)
	if err != nil || len(tables) == 0 {
		return false, err
	}
	return removeUnused(n.unrouted, func() (Wiring, error) { return n.shared(isRoutedTable, isRoutedRule) },
		func() error { return nil })
}

// removeUnused removes what is listed, and further things, unless there are pods before. [ErrPods] is an error only
// afterwards.
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

// Vacant is nil if the kernel shows that there is no pod. A list that the kernel could not
// complete proves nothing.
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

// unrouted is nil if the kernel shows that there is no routed pod.
func (n *NS) unrouted() error { return n.noPair(IsRouted) }

// noPair is nil if no link has a group for which is returns true.
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

// shared lists the objects that serve routed pods alone, and our tables and rules for which the functions return true.
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

// isRoutedRule reports whether a rule of ours serves routed pods alone. No other of ours is about all packets, or what
// the node itself sends, leads to a rule, or does nothing. A rule that drops what arrives by an ENI stays as long as
// its link: the VPC still delivers packets for the pods that have ended.
func isRoutedRule(r Rule) bool {
	_, ofENI := OfRoutedTable(r.Table)
	ofAll := (r.IIF == "" || r.IIF == "lo" && !r.Not) && !r.marked()
	return isOwnRule(r) && (ofENI || ofAll || r.Goto != 0 || r.Nop)
}

// ownTables lists our tables whose names are such.
func (n *NS) ownTables(such func(name string) bool) (own []Table, err error) {
	all, err := n.Tables()
	for _, t := range all {
		if family, name, _ := strings.Cut(t, " "); such(name) && (family == "inet" || family == "arp") {
			own = append(own, Table{Family: family, Name: name})
		}
	}
	return own, err
}
