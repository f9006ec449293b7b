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

// check looks for the objects that the ADD made. It leaves out the objects that a later plugin may have changed.
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
	// A pod may have been made before an upgrade, or with an earlier configuration. So the pod's loop and its value of
	// keepCaller may differ from the present configuration. CHECK accepts each form that a pod may have.
	return checkForms(r.Config.possiblePairs(p), func(p pair) error { return s.checkPod(p, n) })
}

// shareLists lets all later checks share the kernel's lists: the node's rules, the node's routes to the pod, the pod's
// rules, and the pod's routes. The kernel makes each list at most once. The sharing ends when the caller calls the
// returned function.
func (s *scene) shareLists(p pair) (forget func(), err error) {
	near, err := s.nodeNS.List(p.veth.Name)
	if err != nil {
		return nil, err
	}
	far, err := s.podNS.List("")
	return func() { near(); far() }, err
}

// checkShared returns an error if objects that serve all pods are missing. When CRI-O starts, it calls CHECK with the
// configuration from which the pod was made. If CHECK fails, CRI-O considers the pod broken. But the ADD of a later pod
// may have changed these objects, because it had another configuration, for example with other NodePorts. So
// checkShared also accepts the objects of another configuration. If the pod has no IPv6 address, checkShared does not
// demand the objects for IPv6, because the node may have no IPv6.
func (s *scene) checkShared(p pair) error {
	if err := s.node.checkFamilies(s.request); err != nil || p.routed {
		return err // the objects that routed pods share are in the list of each routed pod, see neededObjects
	}
	return checkNodeWiring(s.request, s.node.forPod(p), true)
}

// checkForms calls checkForm for each form that a pod may have (see possiblePairs), until checkForm returns nil for a
// form. If checkForm returns an error for each form, checkForms returns the first of these errors that is not
// errLooped.
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

// neededObjects lists the objects that a pod needs, except its pair and the objects of nodeWiring. The list has only
// objects that each ADD makes, and no objects that a later plugin may have changed (CNI specification, CHECK).
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

// mayLack reports whether a pod may lack the object of a step. routes are the routes in the pod's main table.
//
// A later plugin may have added routes to prevResult, or may have changed the link through which the pod reaches a
// destination. So two kinds of objects may be missing:
//
//   - A route of the node that sends packets back to the pod: the node needs this route only if the pod sends the
//     packets out through its ENI.
//   - A route of the pod: the pod does not need it if the pod has a route to the same destination through another
//     plugin's link.
//
// While ip_forward is 0, the pair's own sysctl for forwarding may also be 0. This is no fault, because the kernel sets
// the sysctl of each pair when repair sets ip_forward to 1.
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

// isReplaced reports whether another route of ours has replaced the route r in an ENI's table. The ADD of a later pod
// may have replaced the route r, because a new configuration has changed the path to the destination.
func (s *scene) isReplaced(r nl.Route) bool {
	if _, is := nl.OfRoutedTable(r.Table); !is {
		return false
	}
	// an error here needs no report, because the Check of r then fails, too
	all, _ := s.nodeNS.RoutesIn(r.Table, nl.FamilyOf(r.Dst.Addr()), s.eni.Name)
	return slices.ContainsFunc(all, func(o nl.Route) bool { return o.Dst == r.Dst && o.Protocol == r.Protocol })
}

// hasWithAnyMTU reports whether the node has the route r, with any MTU. The ADD copied the MTU of the pod's link to the
// route. After the ADD, a later plugin, such as tuning, may have changed the MTU of the link. hasWithAnyMTU returns
// false during a repair, because a repair must set the new MTU.
func (s *scene) hasWithAnyMTU(r nl.Route) bool {
	r.MTU = 0
	return !s.repairs && r.Check(s.nodeNS) == nil
}

// mayLackBlock reports whether the pod may lack the objects that block the IPv4 metadata service. This is true if the
// pod has no block now, and the pod's ADD may have made none. If the configuration does not ask for a block, the ADD
// makes a block only if prevResult has a default route. A later plugin may have added the IPv4 default route, so the
// ADD did not see it. This cannot happen in IPv6, because our ipam plugin returns the IPv6 default route.
func (s *scene) mayLackBlock(p pair) bool {
	if s.Config.BlockInstanceMetadata != nil || s.Config.DefaultRoute == byVPC || s.podNS == nil {
		return false
	}
	return prohibitRoute(metadataAddrs[0]).Check(s.podNS) != nil &&
		!s.hasFilters(s.podLinks(), blockedAddrs(s.request, p))
}

// hasFilters reports whether the links have the right filters for these addresses. If there are no addresses, the links
// need no filters.
func (s *scene) hasFilters(devs []string, addrs []netip.Addr) bool {
	return len(addrs) == 0 || nl.Forbid{Devs: devs, Addrs: addrs}.Check(s.podNS) == nil
}

// isOff reports whether a sysctl of the node is 0.
func (s *scene) isOff(key string) bool { v, _ := s.nodeNS.Sysctl(key); return v == "0" }

// portsEndBefore reports whether the pod's own connections get only ports below the limit, which is the parameter port.
// If so, it is not necessary to reserve the ports from the parameter port on. The runtime sets the sysctls of a pod
// after the ADD, and may have replaced the list of reserved ports.
func (s *scene) portsEndBefore(port int) bool {
	text, _ := s.podNS.Sysctl("net/ipv4/ip_local_port_range")
	var first, last int
	n, _ := fmt.Sscan(text, &first, &last)
	return n == 2 && last < port
}

// isMinor reports whether a pod still works, though not as well, if it lacks the object of a step. Sysctls are minor if
// they neither turn on forwarding nor reserve ports. The second route to a pod (see spareRoute) is minor. The pod's
// addresses at its end of the pair are minor: pods of older releases lack them.
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
