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

// check looks for everything that ADD made, as far as a later plugin may not have changed it.
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
	p, _ := s.made()
	if err := (nl.Wiring{{NS: s.nodeNS, Object: p.veth}}).Check(); err != nil {
		return err
	}
	if err := s.served(p); err != nil {
		return err
	}
	forget, err := s.list(p)
	if err != nil {
		return err
	}
	defer forget()
	n, err := s.whenMade(p)
	if err != nil {
		return err
	}
	// A pod from before an upgrade, or from another configuration, has the other loop, which
	// is as good, and may not distinguish callers.
	return anyRight(r.Config.anyPair(p), func(p pair) error { return s.checkPod(p, n) })
}

// list lets all later checks share the kernel's lists: the node's rules, its routes to the pod, and the pod's rules and
// routes. The kernel lists each at most once.
func (s *scene) list(p pair) (forget func(), err error) {
	near, err := s.nodeNS.List(p.veth.Name)
	if err != nil {
		return nil, err
	}
	far, err := s.podNS.List("")
	return func() { near(); far() }, err
}

// served returns an error with the missing objects of those that serve all pods. The ADD of a later pod may have made
// these objects for another configuration: for other NodePorts, or without the IPv6 that the node had. CRI-O calls
// CHECK when it starts, with the configuration that the pod was made with. If CHECK fails, it takes the pod for broken.
func (s *scene) served(p pair) error {
	if err := s.node.meets(s.request); err != nil || p.routed {
		return err // what routed pods share is among what each needs
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
	return errors.Join(w.Check(), failsClosed(s.request))
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
	needs, err := s.needs(p, n)
	if err != nil {
		return err
	}
	return slices.DeleteFunc(needs, minor).Check()
}

// needs is what a pod needs besides its pair and what serves all pods. needs is the list of ADD without the objects
// that some ADDs do not make. It also leaves out objects that a later plugin may have changed (CNI specification,
// CHECK).
func (s *scene) needs(p pair, n node) (nl.Wiring, error) {
	table, err := s.tableAsMade(p)
	if err != nil {
		return nil, err
	}
	routes, err := s.podNS.Routes(nl.RouteFilter{Table: nl.MainTable})
	if err != nil {
		return nil, err
	}
	excused := func(step nl.Step) bool { return s.excuses(step, p, routes) }
	return slices.DeleteFunc(s.wiring(p, n.primaries(), table), excused), nil
}

// excuses reports whether a pod whose main table has some routes may lack a step.
//
// A later plugin may have added routes to prevResult, or lead a destination elsewhere. So the node need send back to
// the pod only what the pod sends out by its ENI. A route in the pod may be one by a link that is not ours.
func (s *scene) excuses(step nl.Step, p pair, routes []nl.Route) bool {
	byENI := func(r nl.Route) bool { return r.Dev == s.IfName }
	switch o := step.Object.(type) {
	case nl.Rule:
		return o.Pref == prefNode && !slices.ContainsFunc(routes, func(r nl.Route) bool {
			return byENI(r) && r.Dst.Overlaps(o.To)
		})
	case nl.Forbid:
		return slices.Equal(o.Devs, s.podLinks()) && s.unblocked(p) &&
			s.blocks(o.Devs, slices.DeleteFunc(slices.Clone(o.Addrs), netip.Addr.Is4))
	case nl.Sysctl:
		return o.Also && s.portsEndBefore(nl.SpliceFirst)
	case nl.Route:
		switch to := func(r nl.Route) bool { return r.Dst == o.Dst.Masked() }; {
		case step.NS == s.nodeNS && p.routed:
			return o.Via.IsValid() && slices.ContainsFunc(routes, func(r nl.Route) bool { return to(r) && !toHop(r) })
		case step.NS == s.nodeNS:
			return o.Via.IsValid() &&
				(!slices.ContainsFunc(routes, func(r nl.Route) bool { return to(r) && byENI(r) }) || s.hasWithoutMTU(o))
		case o.Table != 0:
			return false
		case o.Type != "":
			return o.Dst.Addr().Is4() && s.unblocked(p)
		default:
			return slices.ContainsFunc(routes, func(r nl.Route) bool {
				return to(r) && r.Dev != "" && !slices.Contains(s.podLinks(), r.Dev)
			})
		}
	}
	return false
}

// hasWithoutMTU reports whether the node has a route, with any MTU. The route has the MTU of the ADD. A later plugin,
// such as tuning, may have changed the MTU of the pod's link since.
func (s *scene) hasWithoutMTU(r nl.Route) bool {
	r.MTU = 0
	return r.Check(s.nodeNS) == nil
}

// unblocked reports whether the pod can reach the metadata service of IPv4, and ADD may not have made the block. ADD
// may not have made the block if the configuration did not ask for it. A later plugin may then have added the default
// route to prevResult. The default route of IPv6 is in the answer of our ipam plugin.
func (s *scene) unblocked(p pair) bool {
	if s.Config.BlockInstanceMetadata != nil || s.Config.DefaultRoute == byVPC || s.podNS == nil {
		return false
	}
	return prohibition(metadata[0]).Check(s.podNS) != nil && !s.blocks(s.podLinks(), blocked(s.request, p))
}

// blocks reports whether the links have the right filters for such addresses. There are none for no addresses.
func (s *scene) blocks(devs []string, addrs []netip.Addr) bool {
	return len(addrs) == 0 || nl.Forbid{Devs: devs, Addrs: addrs}.Check(s.podNS) == nil
}

// portsEndBefore reports whether the pod gives only ports below one to its own connections. What is reserved from there
// on then does not matter. The runtime sets the sysctls of a pod after the ADD, and may have replaced the list.
func (s *scene) portsEndBefore(port int) bool {
	text, _ := s.podNS.Sysctl("net/ipv4/ip_local_port_range")
	var first, last int
	n, _ := fmt.Sscan(text, &first, &last)
	return n == 2 && last < port
}

// minor reports whether a pod works without a step, though not as well. Such a step is a sysctl that does not turn on
// forwarding. Others are the second route and the pod's addresses at its end of the pair, which pods of older releases
// lack.
func minor(s nl.Step) bool {
	switch o := s.Object.(type) {
	case nl.Sysctl:
		return !o.Also && !strings.HasSuffix(o.Key, "forward") && !strings.HasSuffix(o.Key, "forwarding")
	case nl.Route:
		return o.Metric > 0
	case copied:
		return true
	}
	return false
}
