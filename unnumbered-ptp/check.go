// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// check looks for the objects that the ADD made. It leaves out objects that a later plugin may have changed.
func check(r *request) error {
	if err := checkChained(r); err != nil {
		return err
	}
	s, err := openScene(r)
	if err != nil {
		return err
	}
	defer s.close()
	if s.further {
		return s.checkFurther()
	}
	p, _ := s.runningPair()
	if err := (nl.Wiring{{NS: s.nodeNS, Object: p.veth}}).Check(); err != nil {
		return err
	}
	if err := s.checkShared(p); err != nil {
		return err
	}
	forget, err := s.shareLists(p)
	if err != nil {
		return err
	}
	defer forget()
	n, err := s.nodeWhenMade(p)
	if err != nil {
		return err
	}
	// The pod may be older than an upgrade or the present configuration. So its loop and its keepCaller may differ from
	// those of a new pod. CHECK accepts each form that a pod may have.
	return checkForms(r.Config.possiblePairs(p), func(p pair) error { return s.checkPod(p, n) })
}

// shareLists lets all later checks share the kernel's lists: the node's rules and its routes to the pod, and the pod's
// rules and routes. Until the caller calls forget, each list is read at most once.
func (s *scene) shareLists(p pair) (forget func(), err error) {
	near, err := s.nodeNS.List(p.veth.Name)
	if err != nil {
		return nil, err
	}
	far, err := s.podNS.List("")
	return func() { near(); far() }, err
}

// checkShared returns an error if objects that serve all pods are missing. It also accepts objects that the ADD of a
// later pod has made with another configuration. When CRI-O starts, it calls CHECK with the pod's old configuration,
// and considers the pod broken if CHECK fails. checkShared does not demand objects for IPv6 if the pod has no IPv6
// address, because the node may have no IPv6.
func (s *scene) checkShared(p pair) error {
	if err := s.node.checkFamilies(s.request); err != nil || p.routed {
		return err // for a routed pod, neededObjects lists the objects that routed pods share
	}
	return checkNodeWiring(s.request, s.node.forPod(p), true)
}

// checkForms returns nil if checkForm returns nil for one of the forms that a pod may have (see possiblePairs).
// Otherwise, it returns the first error that is not errLooped.
func checkForms(forms []pair, checkForm func(pair) error) (first error) {
	for _, p := range forms {
		err := checkForm(p)
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
	needs, err := s.neededObjects(p, n)
	if err != nil {
		return err
	}
	return slices.DeleteFunc(needs, isMinor).Check()
}

// neededObjects lists the objects that each ADD makes for a pod. It leaves out the pair and the objects of nodeWiring.
// It also leaves out objects that a later plugin may have changed (CNI specification, CHECK).
func (s *scene) neededObjects(p pair, n node) (nl.Wiring, error) {
	table, err := s.tableAsMade(p)
	if err != nil {
		return nil, err
	}
	routes, err := s.podNS.Routes(nl.RouteFilter{Table: nl.MainTable})
	if err != nil {
		return nil, err
	}
	excused := func(step nl.Step) bool { return s.mayLack(step, p, routes) }
	return slices.DeleteFunc(s.wiring(p, n.primaries(), table), excused), nil
}

// mayLack reports whether a pod may lack the object of a step. The argument routes has the routes of the pod's main
// table.
//
// A later plugin may have added routes to prevResult, or may have changed the link by which the pod reaches a
// destination. So two kinds of objects may be missing:
//
//   - A route of the node that leads packets for a destination back to the pod. This route may be missing if the pod
//     does not reach the destination through its ENI.
//   - A route of the pod. This route may be missing if the pod has a route to the same destination through another
//     plugin's link.
//
// As long as ip_forward is 0, the pair's own sysctl for forwarding may also be 0. When repair sets ip_forward to 1, the
// kernel also sets the pair's sysctl.
func (s *scene) mayLack(step nl.Step, p pair, routes []nl.Route) bool {
	byENI := func(r nl.Route) bool { return r.Dev == s.IfName }
	switch o := step.Object.(type) {
	case nl.Rule:
		return o.Pref == prefNode && !slices.ContainsFunc(routes, func(r nl.Route) bool {
			return byENI(r) && r.Dst.Overlaps(o.To)
		})
	case nl.Forbid:
		return slices.Equal(o.Devs, s.podLinks()) && s.mayLackBlock(p) &&
			s.hasFilters(o.Devs, slices.DeleteFunc(slices.Clone(o.Addrs), netip.Addr.Is4))
	case nl.Sysctl:
		return o.Also && s.portsEndBefore(nl.SpliceFirst) ||
			step.NS == s.nodeNS && o == forwards4(p.veth.Name) && s.isOff("net/ipv4/ip_forward")
	case nl.Route:
		switch to := func(r nl.Route) bool { return r.Dst == o.Dst.Masked() }; {
		case step.NS == s.nodeNS && p.routed:
			return s.isReplaced(o) ||
				o.Via.IsValid() &&
					slices.ContainsFunc(routes, func(r nl.Route) bool { return to(r) && !isToNextHop(r) })
		case step.NS == s.nodeNS:
			return o.Via.IsValid() &&
				(!slices.ContainsFunc(routes, func(r nl.Route) bool { return to(r) && byENI(r) }) || s.hasWithAnyMTU(o))
		case o.Table != 0:
			return false
		case o.Type != "":
			return o.Dst.Addr().Is4() && s.mayLackBlock(p)
		default:
			return slices.ContainsFunc(routes, func(r nl.Route) bool {
				return to(r) && r.Dev != "" && !slices.Contains(s.podLinks(), r.Dev)
			})
		}
	}
	return false
}

// isReplaced reports whether another route of ours has replaced the route r in an ENI's table. This happens if the ADD
// of a later pod has a new configuration.
func (s *scene) isReplaced(r nl.Route) bool {
	if _, is := nl.OfRoutedTable(r.Table); !is {
		return false
	}
	all, _ := s.nodeNS.RoutesIn(r.Table, nl.FamilyOf(r.Dst.Addr()), s.eni.Name)
	return slices.ContainsFunc(all, func(o nl.Route) bool { return o.Dst == r.Dst && o.Protocol == r.Protocol })
}

// hasWithAnyMTU reports whether the node has the route r, with any MTU. The route's MTU is that of the pod's link. A
// later plugin, such as CNI's plugin "tuning", may have changed the link's MTU after the ADD. A repair must set the new
// MTU, so hasWithAnyMTU returns false during a repair.
func (s *scene) hasWithAnyMTU(r nl.Route) bool {
	r.MTU = 0
	return !s.repairs && r.Check(s.nodeNS) == nil
}

// mayLackBlock reports whether the pod may lack the objects that block the IPv4 metadata service. This is so if the pod
// has no block now, and its ADD may have made none. Without blockInstanceMetadata, the ADD makes a block only for a
// default route in prevResult. A later plugin may have added the IPv4 default route after this ADD. No later plugin
// adds the IPv6 default route, because our ipam plugin has added it.
func (s *scene) mayLackBlock(p pair) bool {
	if s.Config.BlockInstanceMetadata != nil || s.Config.DefaultRoute == byVPC || s.podNS == nil {
		return false
	}
	return prohibitRoute(metadataAddrs[0]).Check(s.podNS) != nil &&
		!s.hasFilters(s.podLinks(), blockedAddrs(s.request, p))
}

// hasFilters reports whether the links have the filters for these addresses. If addrs is empty, the links need no
// filters, and hasFilters returns true.
func (s *scene) hasFilters(devs []string, addrs []netip.Addr) bool {
	return len(addrs) == 0 || nl.Forbid{Devs: devs, Addrs: addrs}.Check(s.podNS) == nil
}

func (s *scene) isOff(key string) bool { v, _ := s.nodeNS.Sysctl(key); return v == "0" }

// portsEndBefore reports whether the pod's own connections get only ports below the argument "port". If so, this port
// and all higher ports need no reservation. The runtime sets the sysctls of a pod after the ADD, and may have replaced
// the reserved ports.
func (s *scene) portsEndBefore(port int) bool {
	text, _ := s.podNS.Sysctl("net/ipv4/ip_local_port_range")
	var first, last int
	n, _ := fmt.Sscan(text, &first, &last)
	return n == 2 && last < port
}

// isMinor reports whether a pod still works, perhaps less well, without the object of a step. Most sysctls are minor,
// and so are the second route to a pod (spareRoute) and the pod's addresses at its end of the pair (copiedAddr). Pods
// of older releases lack these addresses. Sysctls that turn on forwarding or reserve ports are not minor.
func isMinor(s nl.Step) bool {
	switch o := s.Object.(type) {
	case nl.Sysctl:
		return !o.Also && !strings.HasSuffix(o.Key, "forward") && !strings.HasSuffix(o.Key, "forwarding")
	case nl.Route:
		return o.Metric > 0
	case copiedAddr:
		return true
	}
	return false
}
