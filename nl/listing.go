// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"maps"
	"slices"
)

// A listing has lists of the rules and routes of a namespace. A listing asks the kernel for a list when a check first
// needs the list. Without a listing, each check of a rule asks the kernel for all rules, and the kernel lists the rules
// of all pods. So a caller that makes many checks uses one listing for all of them.
type listing struct {
	dev   int // the index of the link whose routes are listed; 0: the routes by all links
	rules map[Family]*ruleList
	all   map[Family]*routeList
}

// A ruleList has the rules in the kernel's order. The field has is a set of the same rules without their protocols.
type ruleList struct {
	rules []Rule
	err   error
	has   map[Rule]bool
}

// A routeList has the routes by the indices of their links; index 0 has the routes without a link.
type routeList struct {
	byLink map[int][]kernelRoute
	err    error
}

// List makes n read the rules, and the routes by the link dev, only once. Until forget is called, all checks use these
// lists. If dev is "", n reads the routes by all links. The lists do not show later changes, so call forget before a
// change.
func (n *NS) List(dev string) (forget func(), err error) {
	l := &listing{rules: map[Family]*ruleList{}, all: map[Family]*routeList{}}
	if dev != "" {
		if l.dev, err = n.index(dev); err != nil {
			return func() {}, err
		}
	}
	n.listed = l
	return func() { n.listed = nil }, nil
}

// rulesOf returns the rules of a family.
func (l *listing) rulesOf(n *NS, f Family) *ruleList {
	list, known := l.rules[f]
	if !known {
		list = &ruleList{has: map[Rule]bool{}}
		list.rules, list.err = n.askRules(f)
		for _, r := range list.rules {
			r.Protocol = 0
			list.has[r] = true
		}
		l.rules[f] = list
	}
	return list
}

// serves reports whether the listing has all routes by the link of an index. The index 0 stands for any link.
func (l *listing) serves(index int) bool { return l.dev == 0 || l.dev == index }

// routes returns the routes of a family that a filter and the index of a link select. The index 0 stands for any link.
func (l *listing) routes(n *NS, f RouteFilter, family Family, index int) (found []kernelRoute, err error) {
	list, known := l.all[family]
	if !known {
		list = &routeList{byLink: map[int][]kernelRoute{}}
		var all []kernelRoute
		all, list.err = n.askRoutes(n.request, RouteFilter{}, family, l.dev)
		for _, r := range all {
			list.byLink[r.index] = append(list.byLink[r.index], r)
		}
		l.all[family] = list
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
