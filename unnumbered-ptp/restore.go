// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Disconnected lists the node's ends of a network's veth pairs whose pods have IPv6, but to
// which the node has no routes of IPv6 any more.
//
// When somebody disables IPv6 on a node (net.ipv6.conf.all.disable_ipv6), the kernel removes
// the routes of all links, in all tables, and their neighbours (addrconf_ifdown). It brings
// none back when IPv6 is enabled again. It leaves the pods' rules, which show the loss but not
// what is lost. A pod without a service loop has no rule: leased reports of the veth whether
// the pod is known to have an IPv6 address.
func Disconnected(node *nl.NS, network string, leased func(veth string) bool) ([]nl.Link, error) {
	links, err1 := node.Links()
	rules, err2 := node.Rules()
	routes, err3 := node.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(links, func(l nl.Link) bool {
		if !isVeth(l, network) || tableOf6(rules, l.Name) == 0 && !leased(l.Name) ||
			slices.ContainsFunc(routes, func(r nl.Route) bool { return r.Dev == l.Name && r.Dst.Addr().Is6() }) {
			return true
		}
		_, err := node.LinkByName(l.Name) // it may have ended while the routes were listed
		return err != nil
	}), nil
}

// tableOf6 is the table to which the pod's rule of IPv6 leads; 0 if there is no such rule.
func tableOf6(rules []nl.Rule, veth string) uint32 {
	for _, r := range rules {
		if r.Family == nl.IPv6 && r.IIF == veth && r.Pref == prefPod && r.Protocol == nl.RouteProtocol {
			return r.Table
		}
	}
	return 0
}

// Restore adds what the node needs to reach by IPv6 the pod in a namespace, and returns what
// was missing. The caller must know what the ipam plugin answered to the pod's ADD: the pod
// itself could name the address of another. Restore does not change the pod's links and its
// part of the loop. The configuration must be validated.
func Restore(node *nl.NS, network string, a plugin.Attachment, netns string, c Config, added *types100.Result) (done nl.Wiring, err error) {
	s, err := open(newRequest(node, &plugin.Request[Config]{Network: network, Attachment: a, NetNS: netns, Config: c, Prev: added}))
	if err != nil {
		return nil, err
	}
	defer s.close()
	p, _ := s.pair()
	if err := s.reachable(p); err != nil {
		return nil, err
	}
	rules, err := node.Rules()
	if err != nil {
		return nil, err
	}
	needs, err := s.needs6(p, tableOf6(rules, p.veth.Name))
	for _, step := range needs {
		if (nl.Wiring{step}).Check() == nil {
			continue
		}
		if err := install(nl.Wiring{step}); err != nil {
			return done, err
		}
		done = append(done, step)
	}
	return done, err
}

// reachable fails if the node has no IPv6, or if the namespace does not have the other end of
// the pair.
func (s *scene) reachable(p pair) error {
	near, err1 := s.nodeNS.LinkByName(p.veth.Name)
	far, err2 := s.podNS.LinkByName(p.veth.Peer)
	switch {
	case !s.node.has(nl.IPv6):
		return fmt.Errorf("hostInterface: %s has no IPv6 address", s.Config.HostInterface)
	case err1 != nil || err2 != nil || !s.nodeNS.IsPeer(near, s.podNS, far.Index):
		return fmt.Errorf("the other end of %s is not in the namespace %s: %w", p.veth.Name, s.NetNS, errors.Join(err1, err2))
	}
	return nil
}

// needs6 is the node's part of IPv6 for a pod whose rule leads to a table; 0 is no rule. It is
// nil with an error if the pod has another loop than the table shows.
func (s *scene) needs6(p pair, table uint32) (needs nl.Wiring, err error) {
	err = anyRight(s.Config.anyPair(p), func(p pair) error {
		switch {
		case p.loop == none && table != 0:
			return errLooped
		case p.loop != none && table == 0:
			return fmt.Errorf("%s has no rule for service loop %q", p.veth.Name, p.loop)
		}
		w := s.wiring(p, s.node.primaries(), table)
		needs = slices.DeleteFunc(w, func(step nl.Step) bool { return step.NS != s.nodeNS || !ofIPv6(step.Object) })
		return slices.DeleteFunc(steps(s.podNS, podLoop(s.request, p, 0)), minor).Check()
	})
	if err != nil {
		return nil, err
	}
	return needs, nil
}

// ofIPv6 reports whether an object on the node is for a pod's IPv6 alone.
func ofIPv6(o nl.Object) bool {
	switch o := o.(type) {
	case nl.Route:
		return o.Dst.Addr().Is6()
	case nl.Neigh:
		return o.Addr.Is6()
	case nl.Rule:
		return o.Family == nl.IPv6 || o.To.Addr().Is6()
	case nl.Sysctl:
		return strings.HasSuffix(o.Key, "/disable_ipv6")
	}
	return false
}
