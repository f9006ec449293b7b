// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"io/fs"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// RemoveGone deletes the objects that serve the routed pods of ENIs whose links are gone, and returns these objects.
// When a link ends, the kernel deletes the link's routes. It does not delete the throw routes, the rules for the mark,
// the branch, and the table for ARP requests. A branch that stays for ever would keep its mark, and there are only 255
// marks.
//
// An ADD may run at the same time: it adds objects for a link that exists, and RemoveGone deletes objects of links that
// are gone. But a new link may have the index or the name of a link that has just gone. Then the ADD of the new link
// may rely on deleted objects. So if RemoveGone has returned an object, the caller repairs the node.
func RemoveGone(node *nl.NS) (removed nl.Wiring, failed error) {
	gone := func(eni int, is bool) bool { return is && !node.HasLink(eni) }
	var objects []nl.Object
	rules, err1 := node.Rules()
	for _, r := range rules {
		if gone(eniOfRule(r)) {
			objects = append(objects, r)
		}
	}
	groups, err2 := eniTable().BranchGroups(node)
	for _, g := range groups {
		if eni, is := nl.OfRoutedGroup(g); gone(eni, is) {
			objects = append(objects, nl.Branch{Table: eniTable(), Group: g, Link: eni})
		}
	}
	var routes []nl.Route
	var err4 error
	if len(objects) > 0 { // list the routes only if necessary: a node with 1500 pods has thousands of routes
		routes, err4 = node.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	}
	for _, r := range routes {
		if gone(nl.OfRoutedTable(r.Table)) {
			objects = append(objects, r)
		}
	}
	names, err3 := node.AskTables()
	for _, name := range names {
		if _, err := node.LinkByName(name); errors.Is(err, fs.ErrNotExist) {
			objects = append(objects, nl.Table{Family: "arp", Name: nl.AskTable(name)})
		}
	}
	removed = nl.Steps(node, objects)
	return removed, errors.Join(err1, err2, err3, err4, removed.Del())
}
