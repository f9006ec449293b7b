// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// OwnGroup, OwnTable and [RouteProtocol] identify our objects on a node.
const (
	OwnGroup = 72                   // the group of the node's ends of veth pairs: see 'ip link show group 72'
	OwnTable = "cni_ipvlan_vpc_k8s" // the names of our permanent tables of nftables begin with OwnTable
)

// OwnTableOf returns the name of a network's table on the node. Each network has a table of its own, because two
// networks may have different configurations. For the network cni-ipvlan-vpc-k8s of the example configurations,
// OwnTableOf returns [OwnTable]. For any other network, the name is OwnTable and a suffix. If the network's name
// contains an underscore or a dot, the suffix is a dot and this name. Otherwise, the suffix is an underscore and the
// network's name, in which each dash becomes an underscore.
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

// isOwnTable reports whether a table with this name is ours, from this or an earlier release.
func isOwnTable(name string) bool {
	rest, own := strings.CutPrefix(name, OwnTable)
	return own && (rest == "" || rest[0] == '_' || rest[0] == '.')
}

// RemoveShared removes the node's objects that serve all pods: our tables of nftables, our rules, the routes and
// addresses for routed pods, and the BPF objects that pods share. If the node still has a veth pair of a pod, or one of
// our routes to a pod, RemoveShared removes nothing and returns false.
//
// RemoveShared never removes a pod's pair or a pod's route. The kernel deletes a pod's pair and routes when the pod's
// namespace ends. So if a pair or a route exists, its pod still uses it.
//
// An ADD may run at the same time. The ADD makes its pair before it checks the objects that serve all pods. So either
// RemoveShared finds the pair, or the ADD finds that objects are missing. After the removal, RemoveShared looks for
// pairs again. If it then finds a pair, the error is [ErrPods], and the caller must put the removed objects back.
func (n *NS) RemoveShared() (removed bool, err error) {
	return removeUnused(n.Vacant, func() (Wiring, error) { return n.sharedObjects(isOwnTable, isOwnRule) }, removePins)
}

// RemoveRouted is like [NS.RemoveShared], but for routed pods: if the node has no veth pair of a routed pod,
// RemoveRouted removes the objects that serve only routed pods. If the node has no table for routed pods, RemoveRouted
// sends only one request.
func (n *NS) RemoveRouted() (removed bool, err error) {
	tables, err := n.ownTables(isRoutedTable)
	if err != nil || len(tables) == 0 {
		return false, err
	}
	return removeUnused(n.checkNoRouted, func() (Wiring, error) { return n.sharedObjects(isRoutedTable, isRoutedRule) },
		func() error { return nil })
}

// removeUnused first calls checkUnused. If the result is nil, it removes the objects of listObjects, and then calls
// removeMore. If the result is [ErrPods], it does nothing and returns nil. It returns any other error. After the
// removal, it calls checkUnused again, and returns any error of this second call, even [ErrPods]. removed reports
// whether there were objects to remove.
func removeUnused(
	checkUnused func() error, listObjects func() (Wiring, error), removeMore func() error,
) (removed bool, err error) {
	if err := checkUnused(); err != nil {
		if errors.Is(err, ErrPods) {
			err = nil
		}
		return false, err
	}
	shared, err := listObjects()
	if err != nil {
		return false, err
	}
	if err := errors.Join(shared.Del(), removeMore()); err != nil {
		return len(shared) > 0, err
	}
	return len(shared) > 0, checkUnused()
}

// ErrPods means that the node still has pods: there are veth pairs of pods, or routes to pods.
var ErrPods = errors.New("there are pods on the node")

// Vacant returns nil if the node has no pod of ours, and otherwise [ErrPods]. If a list of links or routes may be
// incomplete, Vacant returns another error.
func (n *NS) Vacant() error {
	if err := n.checkNoPair(IsPair); err != nil {
		return err
	}
	routes, err := n.exactRoutes(RouteFilter{Protocol: RouteProtocol})
	if i := slices.IndexFunc(routes, func(r kernelRoute) bool { return !isENIRoute(r.Route) }); i >= 0 {
		err = fmt.Errorf("%w: %s", ErrPods, routes[i])
	}
	return err
}

// checkNoRouted returns nil if the node has no routed pod, and otherwise [ErrPods].
func (n *NS) checkNoRouted() error { return n.checkNoPair(IsRouted) }

// RoutedPairs lists the node's ends of the veth pairs of an ENI's routed pods. eni is the index of the ENI's link.
// RoutedPairs fails if the kernel's list is perhaps incomplete.
func (n *NS) RoutedPairs(eni int) ([]Link, error) {
	links, err := n.exactLinks()
	return slices.DeleteFunc(links, func(l Link) bool { return l.Group != RoutedGroup(eni) }), err
}

// checkNoPair returns [ErrPods] if isPairGroup returns true for the group of a link.
func (n *NS) checkNoPair(isPairGroup func(group uint32) bool) error {
	links, err := n.exactLinks()
	if i := slices.IndexFunc(links, func(l Link) bool { return isPairGroup(l.Group) }); err == nil && i >= 0 {
		err = fmt.Errorf("%w: %s is in group %d", ErrPods, links[i].Name, links[i].Group)
	}
	return err
}

// isENIRoute reports whether our route r serves all routed pods of an ENI, and not only one pod.
func isENIRoute(r Route) bool {
	_, is := OfRoutedTable(r.Table)
	return is
}

// sharedObjects lists the addresses and routes that serve all routed pods of an ENI. It also lists the tables for which
// isWantedTable returns true, and the rules for which isWantedRule returns true.
func (n *NS) sharedObjects(isWantedTable func(name string) bool, isWantedRule func(Rule) bool) (Wiring, error) {
	rules, err1 := n.Rules()
	tables, err2 := n.ownTables(isWantedTable)
	routes, err3 := n.Routes(RouteFilter{Protocol: RouteProtocol})
	addrs, err4 := n.Addrs("")
	var w Wiring
	for _, a := range addrs {
		if a.Prefix == routedPrefix() {
			w = append(w, Step{n, a})
		}
	}
	for _, r := range routes {
		if isENIRoute(r) {
			w = append(w, Step{n, r})
		}
	}
	for _, r := range rules {
		if isWantedRule(r) {
			w = append(w, Step{n, r})
		}
	}
	for _, t := range tables {
		w = append(w, Step{n, t})
	}
	return w, errors.Join(err1, err2, err3, err4)
}

func isOwnRule(r Rule) bool { return r.Protocol == RouteProtocol }

// isRoutedRule reports whether a rule is ours and serves only routed pods. For such a rule, at least one of these
// statements is true:
//
//   - The rule uses the routing table of an ENI.
//   - The rule has Goto or Nop set.
//   - The rule compares no mark. It applies to all packets, or to all packets that the node itself sends.
//
// isRoutedRule returns false for a rule that drops packets of an ENI. This rule stays until the ENI's link is gone,
// because the VPC still delivers packets for pods that have ended.
func isRoutedRule(r Rule) bool {
	_, ofENI := OfRoutedTable(r.Table)
	ofAll := (r.IIF == "" || r.IIF == "lo" && !r.Not) && !r.hasMark()
	return isOwnRule(r) && (ofENI || ofAll || r.Goto != 0 || r.Nop)
}

// ownTables lists the tables of the families inet and arp for whose names isWanted returns true.
func (n *NS) ownTables(isWanted func(name string) bool) (own []Table, err error) {
	all, err := n.Tables()
	for _, t := range all {
		if family, name, _ := strings.Cut(t, " "); isWanted(name) && (family == "inet" || family == "arp") {
			own = append(own, Table{Family: family, Name: name})
		}
	}
	return own, err
}
