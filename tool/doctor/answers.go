// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// checkAnswers asks the kernel by which link the node answers its pods, for each of the
// node's addresses. On a node with several ENIs, cloud-init, amazon-ec2-net-utils and others
// add rules for packets from one of these addresses. The rules lead to a table without routes
// to the pods.
func (p *Node) checkAnswers(context.Context) ([]Finding, error) {
	pods, err := p.podRoutes()
	if err != nil {
		return nil, err
	}
	networks, _ := conf.Networks(p.given) // checkConfig finds what is wrong with one
	var hosts []string
	var found []Finding
	for _, n := range networks {
		host := n.Pair.HostInterface
		if slices.Contains(hosts, host) {
			continue
		}
		hosts = append(hosts, host)
		own, err := p.pool.Host.Addrs(host)
		if err != nil {
			return found, err
		}
		for _, a := range own {
			astray, err := p.astray(a.Prefix.Addr(), pods)
			if err != nil {
				return found, err
			}
			found = append(found, astray...)
		}
	}
	return found, nil
}

// podRoutes returns the node's routes to the addresses of its pods.
func (p *Node) podRoutes() ([]nl.Route, error) {
	links, err := p.pool.Host.Links()
	if err != nil {
		return nil, err
	}
	veths := map[string]bool{}
	for _, l := range links {
		veths[l.Name] = l.Group == nl.OwnGroup && l.Kind == "veth"
	}
	routes, err := p.pool.Host.Routes(nl.RouteFilter{Table: nl.MainTable, Protocol: nl.RouteProtocol})
	return slices.DeleteFunc(routes, func(r nl.Route) bool { return !veths[r.Dev] || !r.Dst.IsSingleIP() }), err
}

// astray looks for a pod to which the node's packets from the address do not leave by the
// pod's veth.
func (p *Node) astray(own netip.Addr, pods []nl.Route) ([]Finding, error) {
	for _, r := range pods {
		if pod := r.Dst.Addr(); pod.Is6() == own.Is6() && !own.IsLinkLocalUnicast() {
			dev, err := p.pool.Host.Leaves(own, pod)
			if err != nil {
				return nil, err
			}
			if dev != r.Dev {
				a, err := p.strays(own, dev, r)
				return []Finding{a}, err
			}
		}
	}
	return nil, nil
}

// strays returns the finding that the node's packets from own to a pod leave by another link.
func (p *Node) strays(own netip.Addr, dev string, r nl.Route) (Finding, error) {
	pref, err := p.beforeOthers()
	ip, bits := "ip", 31
	if own.Is6() {
		ip, bits = "ip -6", 127
	}
	a := Finding{Severity: warning, About: own.String(),
		Means: fmt.Sprintf("packets of the node from this address to the pod %s leave by %s, because of a rule, and not by the pod's veth: ", r.Dst.Addr(), cmp.Or(dev, "no link")),
		Do:    fmt.Sprintf("%s rule add pref %d iif lo lookup main suppress_prefixlength %d, also after a boot (docs/operations.md)", ip, pref, bits)}
	switch {
	case dev == "":
		a.Severity = severe
		a.Means += "neither reaches the other"
	case own.Is4() && p.checksSource(r.Dev):
		a.Severity = severe
		a.Means += "neither reaches the other, because rp_filter drops the pod's packets"
	default:
		a.Means += "they go through the VPC, where security groups may drop them"
	}
	return a, err
}

// checksSource reports whether the kernel checks the source of packets from a link. The
// stricter of two sysctls counts (ip-sysctl, rp_filter). For a link without addresses,
// "loose" is as strict as "strict".
func (p *Node) checksSource(dev string) bool {
	return slices.ContainsFunc([]string{"all", dev}, func(link string) bool {
		v, err := p.pool.Host.Sysctl("net/ipv4/conf/" + link + "/rp_filter")
		return err == nil && v != "0"
	})
}

// beforeOthers returns the preference of a rule that comes before our rules and before all
// others.
func (p *Node) beforeOthers() (int, error) {
	rules, err := p.pool.Host.Rules()
	pref := 511 // that of NodePorts is 512
	for _, r := range rules {
		if r.Pref > 0 { // 0 is that of the table local
			pref = min(pref, r.Pref-1)
		}
	}
	return pref, err
}
