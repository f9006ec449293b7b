// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A Service may have an endpoint in a destination. The client sends to the ClusterIP, by its pair, and only the node knows where that
// leads. From the node it would leave with the node's address, or by IPv6 with the client's. So the node refuses it.
//
// The node's table gives such packets a mark, whoever sends them, and a rule refuses what has the mark and comes from a client. The
// rule is one about the pair, and goes with the others of the pair. The table is one of the network's, and stays, like its other one.
//
// In IPv4 the rule comes after that of the service loop, which takes what is for the VPC. In IPv6 that takes all, so the rule comes before
// it, and the table leaves out the addresses of clients.
const (
	prefService6 = 1021
	prefService4 = 1025
)

// pairOnNode is the node's end of the pair that prevResult names, or "" without one of ours.
func pairOnNode(r *plugin.Request[Config], node *nl.NS) string {
	for _, i := range r.Prev.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		if l, err := node.SeenLink(i.Name); err == nil && l.Group == nl.OwnGroup {
			return l.Name
		}
	}
	return ""
}

// refusesServices is what a client has on the node.
func (p *pod) refusesServices(families []nl.Family) (w nl.Wiring) {
	table := servicesTable(p.network, p.config)
	if p.veth == "" || len(table.Chains) == 0 {
		return nil
	}
	w = nl.Wiring{{NS: p.node, Object: onNode{table}}}
	for _, f := range families {
		pref := prefService4
		if f == nl.IPv6 {
			pref = prefService6
		}
		w = append(w, nl.Step{NS: p.node, Object: nl.Rule{Pref: pref, Family: f, IIF: p.veth, Mark: answer, Mask: answer, Refuse: true, Protocol: nl.RouteProtocol}})
	}
	return w
}

// servicesTable marks what begins a connection to a Service that leads to a destination, of any egress of a network. It has a chain for
// each egress: a verdict ends only its own chain. No network's other table has such a name: see [nl.OwnTableOf].
func servicesTable(network string, all map[string]Egress) nl.Table {
	h := fnv.New32a()
	h.Write([]byte(network))
	t := nl.Table{Family: "inet", Name: nl.OwnTable + ".egress" + hex.EncodeToString(h.Sum(nil))}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		chain := nl.Chain{Name: fmt.Sprint("services", i), Type: "filter", Hook: "prerouting", Priority: afterDNAT}
		for _, f := range nl.Families {
			for _, l := range all[name].outside(f) {
				rule := nl.NFRule{nl.IIFGroup(nl.OwnGroup), nl.CTState("new"), nl.CTStatusDNAT(), nl.DAddr(l.to...)}
				if l.pass {
					rule = append(rule, nl.SetMark(answer))
				}
				chain.Rules = append(chain.Rules, append(rule, nl.Accept()))
			}
		}
		if len(chain.Rules) > 0 {
			t.Chains = append(t.Chains, chain)
		}
	}
	return t
}

// onNode is a table for all clients, of this configuration or of another: an ADD that fails leaves it.
type onNode struct{ nl.Table }

func (onNode) Del(*nl.NS) error { return nil }

func (t onNode) Check(n *nl.NS) error {
	t.Chains = nil
	return t.Intact(n)
}

const afterDNAT = -99

// outside are the layers of the destinations without those among the addresses of clients, where the VPC is, and endpoints in it.
func (e Egress) outside(f nl.Family) []layer {
	clients := of(f, e.clients)
	e.destinations = slices.DeleteFunc(slices.Clone(e.destinations), func(d netip.Prefix) bool {
		c, is := longest(clients, d.Addr())
		return is && c.Bits() <= d.Bits()
	})
	return e.layers(f, clients)
}
