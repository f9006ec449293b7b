// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"maps"
	"slices"
)

// A listCache has the rules and routes of a namespace (see [NS.List]). It reads each list once, when a check first
// needs the list. Without a listCache, each check of a rule reads the rules of all pods.
type listCache struct {
	dev    int // the index of the link whose routes are read; 0: all links
	rules  map[Family]*ruleList
	routes map[Family]*routeList
}

// A ruleList has the rules in the kernel's order, and the same rules as a set. In the set, Protocol is 0, because a
// check ignores the protocol.
type ruleList struct {
	rules []Rule
	err   error
	set   map[Rule]bool
}

// A routeList has the routes by the index of their link. The index 0 has the routes without a link.
type routeList struct {
	byLink map[int][]kernelRoute
	err    error
}

// List makes n remember the namespace's rules and routes. If dev is not "", n remembers only the routes that use the
// link dev. Until the caller calls forget, checks of many rules and routes read each list only once. The lists do not
// show later changes, so call forget before you change a rule or a route.
func (n *NS) List(dev string) (forget func(), err error) {
	l := &listCache{rules: map[Family]*ruleList{}, routes: map[Family]*routeList{}}
	if dev != "" {
		if l.dev, err = n.linkIndex(dev); err != nil {
			return func() {}, err
		}
	}
	n.listCache = l
	return func() { n.listCache = nil }, nil
}

// rulesOf returns the rules of a family. Only the first call for a family reads them from the kernel.
func (l *listCache) rulesOf(n *NS, f Family) *ruleList {
	list, known := l.rules[f]
	if !known {
		list = &ruleList{set: map[Rule]bool{}}
		list.rules, list.err = n.requestRules(f)
		for _, r := range list.rules {
			r.Protocol = 0
			list.set[r] = true
		}
		l.rules[f] = list
	}
	return list
}

// hasRoutesBy reports whether the listCache has the routes of the link with the given index. The index 0 stands for all
// links.
func (l *listCache) hasRoutesBy(index int) bool { return l.dev == 0 || l.dev == index }

// selectRoutes returns those routes of a family that the filter selects and that use the link with the given index. The
// index 0 stands for all links.
func (l *listCache) selectRoutes(n *NS, f RouteFilter, family Family, index int) (found []kernelRoute, err error) {
	list, known := l.routes[family]
	if !known {
		list = &routeList{byLink: map[int][]kernelRoute{}}
		var all []kernelRoute
		all, list.err = n.requestRoutes(n.sendRequest, RouteFilter{}, family, l.dev)
		for _, r := range all {
			list.byLink[r.index] = append(list.byLink[r.index], r)
		}
		l.routes[family] = list
	}
	indices := []int{index}
	if index == 0 {
		indices = slices.Sorted(maps.Keys(list.byLink))
	}
	for _, i := range indices {
		for _, r := range list.byLink[i] {
			if (f.Table == 0 || r.Table == f.Table) && (f.Protocol == 0 || r.Protocol == f.Protocol) {
				found = append(found, r)
			}
		}
	}
	return found, list.err
}
