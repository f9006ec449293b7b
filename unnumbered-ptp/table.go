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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// table is the number of the table for the link of an index: different for
// different indices, and never one of the tables that every host has, 253 to 255.
func table(start uint32, index int) uint32 {
	t := start + uint32(index)
	if start <= unix.RT_TABLE_LOCAL && t >= unix.RT_TABLE_DEFAULT {
		t += unix.RT_TABLE_LOCAL - unix.RT_TABLE_DEFAULT + 1
	}
	return t
}

// table is that of a pod, which may have been there before. One without a loop has none of its
// own, and is not to have one: what it gets back it would put out by its ENI, and miss the answer.
func (s *scene) table(r *plugin.Request[Config], p pair, before bool) (uint32, error) {
	switch {
	case p.loop != none:
		return tableOf(s.host, r.Config, p.veth.Name, before)
	case !before:
		return 0, nil
	}
	routes, err := s.host.Routes(nl.RouteFilter{Dev: p.veth.Name, Protocol: nl.RouteProtocol})
	for _, r := range routes {
		if r.Table != nl.MainTable && r.Table != tableLoopless {
			return 0, fmt.Errorf("%s has a service loop, by table %d: %w", p.veth.Name, r.Table, errLooped)
		}
	}
	return 0, err
}

// errLooped is about a pod that is not to have a service loop any more, and has one.
var errLooped = errors.New(`it is from before serviceLoop was "none"`)

// tableOf is the table of a link on the host: that in which it has routes, which a link that
// was there before may have, or else the first in which nobody has any. A node that has
// made pods for long comes to indices in the ten thousands, and so to numbers that others
// use, such as 10001 and on, of amazon-ec2-net-utils, whose routes come and go.
func tableOf(host *nl.NS, c Config, link string, before bool) (uint32, error) {
	l, err := host.LinkByName(link)
	if err != nil {
		return 0, err
	}
	const step, tries = 1 << 24, 8
	t, free := table(c.start, l.Index), uint32(0)
	for range tries {
		routes, err := host.Routes(nl.RouteFilter{Table: t})
		switch {
		case err != nil:
			return 0, err
		case slices.ContainsFunc(routes, func(r nl.Route) bool { return r.Dev == link }), len(routes) == 0 && !before:
			return t, nil
		case len(routes) == 0:
			free = cmp.Or(free, t)
		}
		t += step
	}
	if free != 0 {
		return free, nil
	}
	return 0, fmt.Errorf("table %d and %d more are in use by others: set routeTableStart", table(c.start, l.Index), tries-1)
}
