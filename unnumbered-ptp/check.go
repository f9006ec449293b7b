// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// check looks for everything that is ours alone. A later plugin may have changed the routes
// in the pod, and the destinations of those on the node (CNI specification, CHECK).
func check(r *request) error {
	if err := chained(r); err != nil {
		return err
	}
	s, err := open(r)
	if err != nil {
		return err
	}
	defer s.close()
	if s.further {
		return s.checkFurther()
	}
	p, _ := s.pair()
	if err := (nl.Wiring{{NS: s.nodeNS, Object: p.veth}}).Check(); err != nil {
		return err
	}
	if err := s.served(p); err != nil {
		return err
	}
	n, err := s.whenMade(p)
	if err != nil {
		return err
	}
	// A pod from before an upgrade, or from another configuration, has the other loop, which
	// is as good, and may not distinguish callers.
	return anyRight(r.Config.anyPair(p), func(p pair) error { return s.checkPod(p, n) })
}

// served returns what the pod misses of what serves all pods. The ADD of a later pod may have made
// that for another configuration: for other NodePorts, or without the IPv6 that the node had. CRI-O
// calls CHECK with the configuration that the pod was made with, and when it starts it takes a pod
// for broken if that fails.
func (s *scene) served(p pair) error {
	if err := s.node.meets(s.request); err != nil {
		return err
	}
	n, err := s.node.of(p).inTable(s.request)
	if err != nil {
		return err
	}
	w := slices.DeleteFunc(lasting(nodeWiring(s.request, n)), minor)
	for i, step := range w {
		if t, is := step.Object.(nl.Table); is {
			t.Others = true
			for k := range t.Chains { // lasting has made a copy
				t.Chains[k].Alike = t.Chains[k].Name == nodePortsChain
			}
			w[i].Object = t
		}
	}
	return w.Check()
}

// anyRight returns nil if one of the forms that a pod may have is right. Otherwise it returns
// the error of the first form, unless that error is only that the pod has a loop.
func anyRight(forms []pair, wrong func(pair) error) (first error) {
	for _, p := range forms {
		err := wrong(p)
		if err == nil {
			return nil
		}
		if first == nil || errors.Is(first, errLooped) {
			first = err
		}
	}
	return first
}

func (s *scene) checkPod(p pair, n node) error {
	table, err := s.table(p, true)
	if err != nil {
		return err
	}
	var w nl.Wiring
	for _, step := range s.wiring(p, n.primaries(), table) {
		route, is := step.Object.(nl.Route)
		if !is || nl.IsFurtherTable(route.Table) && step.NS == s.podNS || step.NS == s.nodeNS && (route.Table == 0 || route.Table == tableLoopless) {
			w = append(w, step)
		}
	}
	return slices.DeleteFunc(w, func(step nl.Step) bool { return minor(step) || s.followsRoutes(step) }).Check()
}

// followsRoutes reports whether ADD may not have made a step: it depends on the routes of prevResult, to which a later plugin may have
// added some. ADD makes the filters of metadata only together with a route.
func (s *scene) followsRoutes(step nl.Step) bool {
	switch o := step.Object.(type) {
	case nl.Rule:
		return o.Pref == prefNode
	case nl.Forbid:
		return slices.Equal(o.Devs, s.podLinks()) && s.Config.BlockInstanceMetadata == nil && s.Config.DefaultRoute != byVPC && !s.prohibits(o.Addrs)
	}
	return false
}

// prohibits reports whether the pod has the routes of metadataBlock.
func (s *scene) prohibits(addrs []netip.Addr) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return s.podNS == nil || prohibition(a).Check(s.podNS) != nil })
}

// minor reports whether a pod works without a step, though not as well. That is so for a
// sysctl that does not forward, and for the second route, which pods of older releases lack.
func minor(s nl.Step) bool {
	switch o := s.Object.(type) {
	case nl.LocalPorts:
		return true
	case nl.Sysctl:
		return !strings.HasSuffix(o.Key, "forward") && !strings.HasSuffix(o.Key, "forwarding")
	case nl.Route:
		return o.Metric > 0
	}
	return false
}
