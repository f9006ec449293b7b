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

// OwnTableOf is the name of a network's table on the node. It is [OwnTable] for the network
// that the shipped configurations name. Each network has its own table, so that two networks
// with different configurations do not replace each other's. A dash in the network's name
// becomes an underscore. A name with underscores or dots stays as it is, behind a dot.
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

// RemoveShared removes from the namespace what serves all pods: our tables of nftables, our
// rules, and the programs that pods share. It removes nothing, and reports false, unless the
// kernel shows in this call that no pod is left. Only its veth pair serves a pod. So the proof
// is that there is no link and no route of ours.
//
// RemoveShared never removes what belongs to one pod. The veth pair and the routes of a pod end
// with its namespace. If they exist, a pod uses them.
//
// An ADD makes the pair first, and then checks what serves all pods. So either RemoveShared
// finds the pair, or the ADD finds what was removed. If both happen at once, a pair may be
// there afterwards. Then the error is [ErrPods], and the caller must repair what was removed.
func (n *NS) RemoveShared() (removed bool, err error) {
	if err := n.Vacant(); err != nil {
		if errors.Is(err, ErrPods) {
			err = nil
		}
		return false, err
	}
	shared, err := n.shared()
	if err != nil {
		return false, err
	}
	if err := errors.Join(shared.Del(), unpin()); err != nil {
		return len(shared) > 0, err
	}
	return len(shared) > 0, n.Vacant()
}

// ErrPods reports that the node has pods: links or routes of ours lead to them.
var ErrPods = errors.New("there are pods on the node")

// Vacant is nil if the kernel shows that there is no pod. A list that the kernel could not
// complete proves nothing.
func (n *NS) Vacant() error {
	links, err := n.exactLinks()
	if err != nil {
		return err
	}
	for _, l := range links {
		if IsPair(l.Group) {
			return fmt.Errorf("%w: %s is in group %d", ErrPods, l.Name, l.Group)
		}
	}
	routes, err := n.Routes(RouteFilter{Protocol: RouteProtocol})
	if i := slices.IndexFunc(routes, func(r Route) bool { return !ofENI(r) }); i >= 0 {
		err = fmt.Errorf("%w: %s", ErrPods, routes[i])
	}
	return err
}

// ofENI reports whether a route of ours serves all routed pods of an ENI.
func ofENI(r Route) bool {
	_, is := OfRoutedTable(r.Table)
	return is
}

// shared lists what serves all pods.
func (n *NS) shared() (Wiring, error) {
	rules, err1 := n.Rules()
	tables, err2 := n.Tables()
	routes, err3 := n.Routes(RouteFilter{Protocol: RouteProtocol})
	var w Wiring
	for _, r := range routes {
		if ofENI(r) {
			w = append(w, Step{n, r})
		}
	}
	for _, r := range rules {
		if r.Protocol == RouteProtocol {
			w = append(w, Step{n, r})
		}
	}
	for _, t := range tables {
		if family, name, _ := strings.Cut(t, " "); isOwnTable(name) && (family == "inet" || family == "arp") {
			w = append(w, Step{n, Table{Family: family, Name: name}})
		}
	}
	return w, errors.Join(err1, err2, err3)
}
