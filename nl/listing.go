// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"maps"
	"slices"
)

// A listing has the rules and routes of a namespace. Each list is from the moment in which a caller first needed it.
// Each check of a rule asks the kernel for all rules, and the kernel lists the rules of all pods. So a caller that
// makes many checks makes them from one list.
type listing struct {
	dev   int // the routes are those by the link of this index; 0: all
	rules map[Family]*ruleList
	all   map[Family]*routeList
}

// A ruleList has the rules in their order, and in a set without their protocols.
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

// List makes all looks at rules share one list, and all looks at the routes by a link share another list. The sharing
// ends when forget is called. Without a name it is for the routes by all links. Changes do not change the lists: call
// forget first.
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

// serves reports whether the list has all routes by the link of an index, where 0 is any link.
func (l *listing) serves(index int) bool { return l.dev == 0 || l.dev == index }

// routes returns the routes of a family that a filter and the index of a link select, where 0 is any link.
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
