// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A node is what an ADD has to know of the node.
type node struct {
	mtu      int          // of hostInterface
	addrs    []netip.Addr // of hostInterface, the primary one of each family first, without link-local ones
	acceptRA bool         // hostInterface listens to routers, as long as the node does not forward IPv6
	rationed bool         // there are more than refusals6 milliseconds between two refusals to a host, by ICMPv6
}

func readNode(host *nl.NS, c Config) (node, error) {
	l, err := host.LinkByName(c.HostInterface)
	if err != nil {
		return node{}, fmt.Errorf("hostInterface: %w", err)
	}
	n := node{mtu: l.MTU}
	if n.addrs, err = hostAddrs(host, c.HostInterface); err != nil {
		return n, err
	}
	if len(n.addrs) == 0 {
		return n, fmt.Errorf("hostInterface: %s has no addresses", c.HostInterface)
	}
	if _, ok := n.primary(true); ok {
		v, _ := host.Sysctl(conf6(c.HostInterface) + "accept_ra")
		n.acceptRA = v == "1"
		v, _ = host.Sysctl(ration6)
		ms, _ := strconv.Atoi(v)
		n.rationed = ms > refusals6
	}
	return n, nil
}

// forwards6 says whether the node forwards IPv6 because of pods.
func (n node) forwards6(c Config) bool {
	_, v6 := n.primary(true)
	return c.IPMasq && v6
}

func conf4(link string) string { return "net/ipv4/conf/" + link + "/" }
func conf6(link string) string { return "net/ipv6/conf/" + link + "/" }

// The kernel rations the refusals that a host gets by ICMPv6, as for a Service without
// backends: by default to one a second, newer kernels to ten. Redirects come out of the
// same ration, at most one a second, and each packet that leaves by the link that it
// came by is counted as if it caused one, though none is sent without a link-local
// address (ip6_forward). Packets of the service loop are such. So a pod that talks to
// Services has less than a second's worth of its ration left. With refusals6 milliseconds
// between two, nearly all refusals get through; what a node refuses altogether is limited
// besides (icmp_msgs_per_sec). It is a whole number of ticks of any kernel's.
const (
	ration6   = "net/ipv6/icmp/ratelimit"
	refusals6 = 20 // milliseconds
)

const (
	prefNodePort = 512
	prefLoopless = 1022
	prefHost     = 1023 // what a pod has the node send on, and is not looped
	prefPod      = 1024
)

// nodeWiring is what serves all pods of the node.
func nodeWiring(r *plugin.Request[Config], n node, host *nl.NS) nl.Wiring {
	c := r.Config
	var w nl.Wiring
	add := func(o nl.Object) { w = append(w, nl.Step{NS: host, Object: o}) }
	_, v6 := n.primary(true)
	if c.IPMasq {
		add(nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"})
		// The node sends a packet back by the veth that it came by, on purpose, and
		// need not tell the pod of a shorter way. It does if either the link or
		// "all" wants it to; the links that have always done so still do.
		add(nl.Sysctl{Key: conf4("all") + "send_redirects", Value: "0"})
	}
	if n.forwards6(c) {
		if n.acceptRA { // 2: although it forwards
			add(nl.Sysctl{Key: conf6(c.HostInterface) + "accept_ra", Value: "2"})
		}
		add(nl.Sysctl{Key: conf6("all") + "forwarding", Value: "1"})
		if n.rationed {
			add(nl.Sysctl{Key: ration6, Value: strconv.Itoa(refusals6)})
		}
	}
	if t := nodeTable(r, n); len(t.Chains) > 0 {
		add(t)
	}
	if c.Loopless() {
		// What the node sends itself goes by the main table, which says from which address.
		loopless := nl.Rule{Pref: prefLoopless, Not: true, IIF: "lo", Table: tableLoopless, Protocol: nl.RouteProtocol}
		add(loopless)
		if v6 {
			loopless.IPv6 = true
			add(loopless)
		}
	}
	if c.ports.last == 0 {
		return w
	}
	// A strict check would ask for the way back of a packet to a NodePort as if it
	// came from the pod, and find the pod's table.
	add(nl.Sysctl{Key: conf4(c.HostInterface) + "rp_filter", Value: "2"})
	marked := nl.Rule{Pref: prefNodePort, Mark: c.mark, Mask: c.mark, Table: unix.RT_TABLE_MAIN, Protocol: nl.RouteProtocol}
	add(marked)
	if v6 {
		marked.IPv6 = true
		add(marked)
	}
	return w
}

// nodeTable is the node's netfilter rules, for one network. What two networks have in
// common is there twice, which is as good as once.
//
// A connection from outside to a NodePort gets a mark, because its answers must
// leave as it came. To the pod's rule they are packets to the VPC like others,
// which it would send back into the pod; the rule for marked packets comes first.
func nodeTable(r *plugin.Request[Config], n node) nl.Table {
	c, t := r.Config, nl.Table{Family: "inet", Name: nl.OwnTableOf(r.Network)}
	if p := c.ports; p.last != 0 {
		in, mark := nl.IIFName(c.HostInterface), nl.SetCTMark(c.mark)
		t.Chains = append(t.Chains, nl.Chain{
			Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: mangle,
			Rules: []nl.NFRule{
				{in, nl.DPort("tcp", p.first, p.last), mark},
				{in, nl.DPort("udp", p.first, p.last), mark},
				{nl.IIFGroup(nl.OwnGroup), nl.CTMark(c.mark), nl.SetMark(c.mark)},
			},
		})
	}
	if c.IPMasq {
		t.Chains = append(t.Chains, senders(), postrouting(c, n.primaries().addrs...))
	}
	if caller := callers(r, n); len(caller.Rules) > 0 {
		t.Chains = append(t.Chains, caller)
	}
	return t
}

// postrouting is the node's chain for what it sends on for pods, by these addresses of its
// own. It comes before kube-proxy, at 100, which would give what goes back into a pod the
// node's address where it masquerades.
func postrouting(c Config, addrs ...netip.Addr) nl.Chain {
	chain := nl.Chain{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 99, Rules: []nl.NFRule{
		{nl.IIFGroup(nl.OwnGroup), nl.OIFName(c.HostInterface), nl.Masquerade()},
	}}
	for _, a := range addrs {
		chain.Rules = append(chain.Rules, loopRules(a)...)
	}
	return chain
}
