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

// Severed lists the host ends of a network's veth pairs whose pods have IPv6, and to which
// the node has no way by it any more. Where somebody disables IPv6 on a node
// (net.ipv6.conf.all.disable_ipv6) the kernel takes the routes of all links, in all tables, and
// their neighbours (addrconf_ifdown), and it brings none back when IPv6 is enabled again. It
// leaves the pods' rules. By these the loss is known; what is lost they do not tell. A pod
// without a service loop has no rule: leased says of the host end whether the pod is known
// to have an address of IPv6.
func Severed(host *nl.NS, network string, leased func(veth string) bool) ([]nl.Link, error) {
	links, err1 := host.Links()
	rules, err2 := host.Rules()
	routes, err3 := host.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(links, func(l nl.Link) bool {
		if l.Kind != "veth" || l.Group != nl.OwnGroup || networkOf(l.Alias) != network ||
			tableOf6(rules, l.Name) == 0 && !leased(l.Name) ||
			slices.ContainsFunc(routes, func(r nl.Route) bool { return r.Dev == l.Name && r.Dst.Addr().Is6() }) {
			return true
		}
		_, err := host.LinkByName(l.Name) // it may have gone while the routes were listed
		return err != nil
	}), nil
}

// tableOf6 is the table of IPv6 to which the pod's rule leads; 0 if there is no such rule.
func tableOf6(rules []nl.Rule, veth string) uint32 {
	for _, r := range rules {
		if r.IPv6 && r.IIF == veth && r.Pref == prefPod && r.Protocol == nl.RouteProtocol {
			return r.Table
		}
	}
	return 0
}

// HostEnd is the name of the host end of an attachment's veth pair.
func HostEnd(network string, a plugin.Attachment) string { return vethName(network, a) }

// Rejoin puts back what the node needs to reach by IPv6 the pod in a namespace, and returns what
// was missing. What the ipam plugin had answered to its ADD is for the caller to know: the pod
// itself could name another's address. The pod's links, and what it has of the loop, are as
// they were. The configuration is to be validated.
func Rejoin(network string, a plugin.Attachment, netns string, c Config, added *types100.Result) (done nl.Wiring, err error) {
	r := &plugin.Request[Config]{Network: network, Attachment: a, NetNS: netns, Config: c, Prev: added}
	s, err := open(r)
	if err != nil {
		return nil, err
	}
	defer s.close()
	p, _ := s.pair(r)
	rules, err := s.host.Rules()
	if err != nil {
		return nil, err
	}
	near, err1 := s.host.LinkByName(p.veth.Name)
	far, err2 := s.pod.LinkByName(p.veth.Peer)
	switch _, v6 := s.node.primary(true); {
	case !v6:
		return nil, fmt.Errorf("hostInterface: %s has no IPv6 address", r.Config.HostInterface)
	case err1 != nil || err2 != nil || !s.host.IsPeer(near, s.pod, far.Index):
		return nil, fmt.Errorf("the namespace %s has not the other end of %s: %w", r.NetNS, p.veth.Name, errors.Join(err1, err2))
	}
	var lost nl.Wiring
	table := tableOf6(rules, p.veth.Name)
	err = anyRight(r.Config.anyPair(p), func(p pair) error {
		switch {
		case p.loop == none && table != 0:
			return errLooped
		case p.loop != none && table == 0:
			return fmt.Errorf("%s has no rule for service loop %q", p.veth.Name, p.loop)
		}
		w := wiring(r, p, s.node.primaries(), table, s.host, s.pod)
		lost = slices.DeleteFunc(w, func(step nl.Step) bool { return step.NS != s.host || !ofIPv6(step.Object) })
		return s.hasLoop(r, p)
	})
	if err != nil {
		return nil, err
	}
	for _, step := range lost {
		if (nl.Wiring{step}).Check() == nil {
			continue
		}
		if err := install(nl.Wiring{step}); err != nil {
			return done, err
		}
		done = append(done, step)
	}
	return done, nil
}

// hasLoop checks the pod's part of the loop.
func (s *scene) hasLoop(r *plugin.Request[Config], p pair) error {
	var w nl.Wiring
	for _, o := range podLoop(r, p) {
		w = append(w, nl.Step{NS: s.pod, Object: o})
	}
	return slices.DeleteFunc(w, minor).Check()
}

// ofIPv6 tells of what a pod has on the node whether it is of IPv6 alone.
func ofIPv6(o nl.Object) bool {
	switch o := o.(type) {
	case nl.Route:
		return o.Dst.Addr().Is6()
	case nl.Neigh:
		return o.Addr.Is6()
	case nl.Rule:
		return o.IPv6 || o.To.Addr().Is6()
	case nl.Sysctl:
		return strings.HasSuffix(o.Key, "/disable_ipv6")
	}
	return false
}
