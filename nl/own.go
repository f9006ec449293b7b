// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"strings"
)

// By these marks, and by [RouteProtocol], what is ours on a node can be told from
// what is others'.
const (
	OwnGroup = 72                   // of the host ends of veth pairs: see 'ip link show group 72'
	OwnTable = "cni_ipvlan_vpc_k8s" // of nftables, in the family inet, on the node and in pods
)

// OwnTableOf is the node's table of a network: [OwnTable] for the network that the shipped
// configurations name, which is called like it. Each network has its own, so that two
// whose configurations differ do not replace each other's: a name with a dash gets
// underscores, and one that has those, or dots, stays as it is, behind a dot.
func OwnTableOf(network string) string {
	if strings.ContainsAny(network, "_.") {
		return OwnTable + "." + network
	}
	return FoldedTableOf(network)
}

// FoldedTableOf is the node's table of a network in earlier releases, where those whose names
// differ in a dash, a dot or an underscore had the same.
func FoldedTableOf(network string) string {
	name := strings.ReplaceAll(strings.ReplaceAll(network, "-", "_"), ".", "_")
	if name == OwnTable {
		return OwnTable
	}
	return OwnTable + "_" + name
}

// isOwnTable tells the table of a network, of this release or an earlier one, by its name.
func isOwnTable(name string) bool {
	rest, own := strings.CutPrefix(name, OwnTable)
	return own && (rest == "" || rest[0] == '_' || rest[0] == '.')
}

// RemoveOwn removes from the namespace all that bears our marks: veth pairs, rules,
// routes, and the table of nftables; and the programs that pods share. It is for a
// node that has no pod any more.
func (n *NS) RemoveOwn() error {
	own, err := n.own()
	if err != nil {
		return err
	}
	return errors.Join(own.Del(), unpin())
}

// own lists what bears our marks.
func (n *NS) own() (Wiring, error) {
	links, err1 := n.Links()
	routes, err2 := n.Routes(RouteFilter{Protocol: RouteProtocol})
	rules, err3 := n.Rules()
	tables, err4 := n.Tables()
	var w Wiring
	for _, l := range links {
		if l.Group == OwnGroup && l.Kind == "veth" {
			w = append(w, Step{n, Veth{Name: l.Name}})
		}
	}
	for _, r := range routes {
		w = append(w, Step{n, r})
	}
	for _, r := range rules {
		if r.Protocol == RouteProtocol {
			w = append(w, Step{n, r})
		}
	}
	for _, t := range tables {
		if name, inet := strings.CutPrefix(t, "inet "); inet && isOwnTable(name) {
			w = append(w, Step{n, Table{Family: "inet", Name: name}})
		}
	}
	return w, errors.Join(err1, err2, err3, err4)
}
