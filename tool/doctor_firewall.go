// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// checkFirewall looks for chains of others that drop what pods have the node send on:
// Docker's, whose policy for all that is not its own is to drop, firewalld's, and those of
// hardened images.
func (p *patient) checkFirewall(context.Context) ([]ailment, error) {
	networks, _ := pairedNetworks(p.given) // checkConfig finds what is wrong with one
	var found []ailment
	for _, v6 := range p.families() {
		a, err := p.refused(networks, v6)
		if err != nil {
			return found, err
		}
		found = append(found, a...)
	}
	if len(networks) > 0 {
		found = append(found, p.legacy()...)
	}
	return found, nil
}

// families are those that pods have, or that the configuration gives the first: IPv6 or not.
func (p *patient) families() []bool {
	has := map[bool]bool{}
	for a := range p.state.Leases.Keys() {
		has[a.Is6()] = true
	}
	if p.config != nil {
		for _, policy := range p.config.Policies() {
			has[false] = has[false] || slices.Contains(policy.Families, lease.IPv4)
			has[true] = has[true] || slices.Contains(policy.Families, lease.IPv6)
		}
	}
	return slices.DeleteFunc([]bool{false, true}, func(v6 bool) bool { return !has[v6] })
}

// A course is a way of packets through the node, by a name that people know.
type course struct {
	name string
	nl.Passage
	firewall bool // that plugin adds rules for each pod's address, in iptables' FORWARD or with firewalld
}

// localPorts are those at which kube-proxy does not masquerade. What it does, it accepts itself.
const localPorts = "NodePorts of Services with externalTrafficPolicy: Local"

// courses are the ways of packets from a network's pods and back. The veth is nobody's, so
// that a rule for one pod is none for all.
func courses(n paired, v6 bool) []course {
	if !n.pair.IPMasq {
		return nil // it is the pods' wish
	}
	const veth = "veth"
	host := n.pair.HostInterface
	all := []course{
		{"Services", nl.Passage{In: veth, Out: veth, InGroup: nl.OwnGroup, OutGroup: nl.OwnGroup, IPv6: v6, Rewritten: true}, n.firewall},
		{"Services", nl.Passage{In: veth, Out: veth, InGroup: nl.OwnGroup, OutGroup: nl.OwnGroup, IPv6: v6, Rewritten: true, Answer: true}, n.firewall},
		{"the internet", nl.Passage{In: veth, Out: host, InGroup: nl.OwnGroup, IPv6: v6}, n.firewall},
		{"the internet", nl.Passage{In: host, Out: veth, OutGroup: nl.OwnGroup, IPv6: v6, Answer: true}, n.firewall},
	}
	if ports := n.pair.NodePorts; ports == nil || *ports != "" {
		all = append(all, course{localPorts, nl.Passage{In: host, Out: veth, OutGroup: nl.OwnGroup, IPv6: v6, Rewritten: true}, n.firewall})
	}
	return all
}

// refused asks of each course of the networks which chains end it.
func (p *patient) refused(networks []paired, v6 bool) ([]ailment, error) {
	ends, sure := map[string][]string{}, map[string]bool{}
	var chains []string
	var all []course
	for _, n := range networks {
		all = append(all, courses(n, v6)...)
	}
	for _, k := range all {
		refusals, err := p.pool.Host.Refusals(k.Passage)
		if err != nil {
			return nil, err
		}
		for _, r := range refusals {
			if k.firewall && (r.Maybe || strings.HasSuffix(r.Chain, " filter FORWARD")) {
				continue
			}
			if !slices.Contains(chains, r.Chain) {
				chains = append(chains, r.Chain)
			}
			if !slices.Contains(ends[r.Chain], k.name) {
				ends[r.Chain] = append(ends[r.Chain], k.name)
			}
			sure[r.Chain] = sure[r.Chain] || !r.Maybe && k.name != localPorts
		}
	}
	var found []ailment
	for _, chain := range chains {
		a := ailment{Severity: severe, About: "nft chain " + chain,
			Means: fmt.Sprintf("it drops what the node sends on for pods, %s: %s do not work, and calls time out", map[bool]string{false: "IPv4", true: "IPv6"}[v6], strings.Join(ends[chain], ", ")),
			Do: fmt.Sprintf(`have its owner accept iifname "veth*" and oifname "veth*", or iifgroup %d and oifgroup %[1]d: for Docker in the chain DOCKER-USER, or "iptables": false; `+
				"for firewalld a zone with the target ACCEPT for veth+ (docs/operations.md)", nl.OwnGroup)}
		if !sure[chain] {
			a.Severity = doubted
			a.Means += ", unless a rule lets them pass that goes by more than the link"
		}
		found = append(found, a)
	}
	return found, nil
}

// legacy says of what cannot be looked at that it is there.
func (p *patient) legacy() []ailment {
	var found []ailment
	for _, v6 := range p.families() {
		prefix := map[bool]string{false: "ip", true: "ip6"}[v6]
		names, err := os.ReadFile("/proc/net/" + prefix + "_tables_names")
		if err == nil && slices.Contains(strings.Fields(string(names)), "filter") {
			found = append(found, ailment{Severity: noted, About: prefix + "tables-legacy: the table filter", Means: "it is there, and was not looked at",
				Do: prefix + "tables-legacy -S FORWARD: if that says -P FORWARD DROP, it needs rules that accept veth+ both ways"})
		}
	}
	return found
}

// checkProxy looks for kube-proxy's IPVS mode, by its link. What IPVS has rewritten it routes
// anew, as if the node had sent it: past the pod's rule, so that a backend beside the pod
// gets it from the pod by the veth, and answers by its ENI.
func (p *patient) checkProxy(context.Context) ([]ailment, error) {
	const link = "kube-ipvs0"
	_, err := p.pool.Host.LinkByName(link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []ailment{{Severity: doubted, About: link, Means: "kube-proxy is or was in IPVS mode: pods do not reach Services whose backend is a pod of this node, unless masqueradeAll is set; and backends see the node's address",
		Do: "kube-proxy in nftables mode, or iptables (docs/install.md); if it is in one of these: ip link del " + link}}, err
}
