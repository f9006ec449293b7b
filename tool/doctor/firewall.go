// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// checkFirewall looks for chains that may drop packets that the node forwards for pods. Other programs make such
// chains, for example Docker and firewalld. Hardened images have such chains, too. checkFirewall does not evaluate the
// rules in these chains, because they may depend on any property of a packet.
func (p *Node) checkFirewall(context.Context) ([]Finding, error) {
	networks, _ := p.conflists.Networks() // checkConfig reports mistakes in networks
	if len(networks) == 0 {
		return nil, nil
	}
	var chains []nl.DroppingChain
	families := map[nl.DroppingChain][]string{} // a chain of the family inet gets packets of both families
	for _, family := range p.podFamilies() {
		dropping, err := p.kernel.DroppingChains(family)
		if err != nil {
			return nil, err
		}
		for _, c := range dropping {
			if families[c] == nil {
				chains = append(chains, c)
			}
			families[c] = append(families[c], family.String())
		}
	}
	var found []Finding
	networks = slices.DeleteFunc(networks, func(n conf.Network) bool { return !isForwarded(n) })
	looped := slices.ContainsFunc(networks, func(n conf.Network) bool { return n.Pair.Loops() })
	for _, c := range chains {
		by := strings.Join(families[c], " and ")
		switch {
		case c.From.IsValid():
			found = append(found, p.droppingSources(c)...)
		case c.Source && looped:
			found = append(found, sourceCheckFinding(c, by))
		case !c.Source && len(networks) > 0 && !isAccepted(c.Name, networks):
			found = append(found, droppingFinding(c, by))
		}
	}
	// A record has no tables of iptables-legacy.
	if p.pool == nil || len(networks) == 0 {
		return found, nil
	}
	return append(found, p.legacyTables()...), nil
}

// isForwarded reports whether the node forwards packets of the network's pods. Without ipMasq, the node forwards only
// the packets of routed pods.
func isForwarded(n conf.Network) bool {
	if n.IPAM == nil { // checkConfig reports the mistake
		return n.Pair.IPMasq
	}
	routed, _ := n.IPAM.Routed()
	return n.Pair.IPMasq || len(routed) > 0
}

// droppingSources returns a finding if the chain drops packets from the address of a pod, and otherwise nil.
func (p *Node) droppingSources(c nl.DroppingChain) []Finding {
	for a := range p.state.Leases.Keys() {
		if c.From.Contains(a) {
			return []Finding{{Severity: warning, About: "nft chain " + c.Name,
				Means: fmt.Sprintf("a rule drops packets from %s. Pods have addresses in this range, for example "+
					"%s. The node gets no answers from these pods, so probes of the kubelet fail", c.From, a),
				Do: "remove the rule, or let an earlier rule accept packets of the links veth*. For Tailscale, " +
					"run tailscale set --netfilter-mode=nodivert (docs/operations.md)"}}
		}
	}
	return nil
}

// isAccepted reports whether the upstream plugin "firewall" makes a chain accept the packets of all pods. The plugin
// adds rules for each pod's address to the chain "filter FORWARD", but only for networks whose conflist has the plugin.
func isAccepted(chain string, networks []conf.Network) bool {
	return strings.HasSuffix(chain, " filter FORWARD") &&
		!slices.ContainsFunc(networks, func(n conf.Network) bool { return !n.Chains("firewall") })
}

// droppingFinding returns the finding about a chain that may drop packets that the node forwards for pods.
func droppingFinding(c nl.DroppingChain, family string) Finding {
	const what = "Services, the internet and NodePorts do not work by "
	f := Finding{Severity: warning, About: "nft chain " + c.Name,
		Means: "the chain drops packets that no rule accepts. If packets of pods are among these, then " +
			what + family + ", and calls time out",
		Do: fmt.Sprintf(`check that a rule accepts iifname "veth*", and that a second rule accepts oifname "veth*". `+
			`These rules may instead match iifgroup %d and oifgroup %[1]d (for routed pods, iifgroup & 0xff000000 == `+
			`%#[2]x, and the same with oifgroup). If a rule is missing, add it. For Docker, add the rules to the `+
			`chain DOCKER-USER, or set "iptables": false. For firewalld, add a zone with the target ACCEPT for veth+. `+
			`For ufw, run ufw route allow in on veth+, and ufw route allow out on veth+ (docs/operations.md)`,
			nl.OwnGroup, nl.RoutedGroup(0))}
	if c.Empty {
		f.Severity, f.Means = severe, "the chain drops all packets that the node forwards. "+what+family+
			", and calls time out"
	}
	return f
}

// sourceCheckFinding returns the finding about a chain that checks the sources of packets. If an ipvlan pod sends a
// request to a Service, the answer comes through the ENI, from the address of a backend. The pod sends the answer on to
// the node through the pod's veth. Only the node can replace the backend's address by the Service's address. The node's
// route to the backend does not use this veth, so the chain drops the answer.
func sourceCheckFinding(c nl.DroppingChain, family string) Finding {
	return Finding{Severity: warning, About: "nft chain " + c.Name,
		Means: "a rule of the chain drops packets if the node has no route to their source by the link on which they " +
			"arrive. Answers of Services to ipvlan pods are such packets. So Services do not work by " + family +
			" for these pods, and calls time out",
		Do: "let the chain accept packets of the links veth* before this rule, or remove the rule. For firewalld, " +
			"set IPv6_rpfilter=no in firewalld.conf, and restart firewalld (docs/operations.md)"}
}

// podFamilies returns the families of the pods' addresses, and the families that the configurations give to new pods.
func (p *Node) podFamilies() []nl.Family {
	var has []nl.Family
	for a := range p.state.Leases.Keys() {
		has = append(has, nl.FamilyOf(a))
	}
	for _, pool := range p.poolPolicies() {
		has = append(has, pool.Families...)
	}
	return slices.DeleteFunc(slices.Clone(nl.Families), func(f nl.Family) bool { return !slices.Contains(has, f) })
}

// legacyTables returns a finding for each table "filter" of iptables-legacy, which the check cannot read.
func (p *Node) legacyTables() []Finding {
	var found []Finding
	for _, family := range p.podFamilies() {
		prefix := map[nl.Family]string{nl.IPv4: "ip", nl.IPv6: "ip6"}[family]
		names, err := os.ReadFile("/proc/net/" + prefix + "_tables_names")
		if err == nil && slices.Contains(strings.Fields(string(names)), "filter") {
			found = append(found, Finding{Severity: note, About: "the table filter of " + prefix + "tables-legacy",
				Means: "this check cannot read the table. The table may drop packets that the node forwards for pods",
				Do: "run " + prefix + "tables-legacy -S FORWARD. If it prints -P FORWARD DROP, add rules that accept " +
					"packets from veth+ and to veth+"})
		}
	}
	return found
}
