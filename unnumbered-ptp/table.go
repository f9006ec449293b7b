// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// tableOfIndex returns the number of the routing table for the link with this index. start is routeTableStart.
// Different indices give different numbers. No number is from 253 to 255, because every namespace has these tables.
func tableOfIndex(start uint32, index int) uint32 {
	t := start + uint32(index)
	if start <= unix.RT_TABLE_LOCAL && t >= unix.RT_TABLE_DEFAULT {
		t += unix.RT_TABLE_LOCAL - unix.RT_TABLE_DEFAULT + 1
	}
	return t
}

// loopTable returns the number of the pod's routing table. existed reports whether the pair existed before this ADD. A
// pod without a loop gets no table. If an earlier ADD has made a table, loopTable returns an error: with this table,
// the node would send the pod's packets for the VPC back to the pod.
func (s *scene) loopTable(p pair, existed bool) (uint32, error) {
	switch {
	case p.loop != none:
		return s.tableOfVeth(p, existed)
	case !existed:
		return 0, nil
	}
	routes, err := s.nodeNS.Routes(nl.RouteFilter{Dev: p.veth.Name, Protocol: nl.RouteProtocol})
	for _, r := range routes {
		if r.Table != nl.MainTable && r.Table != tableLoopless {
			return 0, fmt.Errorf("%s has a service loop in the routing table %d: %w", p.veth.Name, r.Table, errLooped)
		}
	}
	return 0, err
}

// tableAsMade returns the number of the routing table that a pod has. The pod's rule shows this number. If the rule is
// missing, a route in the table shows the number.
func (s *scene) tableAsMade(p pair) (uint32, error) {
	rules, err := s.nodeNS.Rules()
	if err != nil {
		return 0, err
	}
	if p.routed {
		return 0, nil
	}
	i := slices.IndexFunc(rules, func(r nl.Rule) bool { return isPodRule(r) && r.IIF == p.veth.Name })
	switch {
	case i < 0:
		return s.loopTable(p, true)
	case p.loop == none:
		return 0, fmt.Errorf("%s has a service loop in the routing table %d: %w", p.veth.Name, rules[i].Table,
			errLooped)
	}
	return rules[i].Table, nil
}

// errLooped is the error about a pod with a service loop, if serviceLoop is now "none".
var errLooped = errors.New(
	`the pod is older than serviceLoop "none": delete the pod, and its controller makes a new one`)

// tableOfVeth returns the number of the routing table of a pod's veth. The table of an existing veth has a route
// through this veth. A new veth gets the first table without routes of the pod's families. After many pods, the indices
// of links reach the numbers of other programs' tables, whose routes come and go: amazon-ec2-net-utils uses 10001 and
// higher numbers.
func (s *scene) tableOfVeth(p pair, existed bool) (uint32, error) {
	near, err := p.veth.Near(s.nodeNS, !existed)
	if err != nil {
		return 0, err
	}
	const step, tries = 1 << 24, 8
	t, free := tableOfIndex(s.Config.start, near.Index), uint32(0)
	for range tries {
		routes, err := s.routesIn(t, p)
		switch {
		case err != nil:
			return 0, err
		case slices.ContainsFunc(routes, func(r nl.Route) bool { return r.Dev == near.Name }),
			len(routes) == 0 && !existed:
			return t, nil
		case len(routes) == 0:
			free = cmp.Or(free, t)
		}
		t += step
	}
	if free != 0 {
		return free, nil
	}
	return 0, fmt.Errorf("the routing table %d and the %d other tables for this pod are in use by other programs: set "+
		"routeTableStart to another number", tableOfIndex(s.Config.start, near.Index), tries-1)
}

func (s *scene) routesIn(table uint32, p pair) (all []nl.Route, err error) {
	for _, f := range p.families() {
		routes, err := s.nodeNS.Routes(nl.RouteFilter{Table: table, Family: f})
		if err != nil {
			return nil, err
		}
		all = append(all, routes...)
	}
	return all, nil
}
