// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkRules looks for rules of other programs that match packets from addresses of pods. Such a rule leads the packets
// to a table without routes to Services and to other pods of the node.
func (p *Node) checkRules(context.Context) ([]Finding, error) {
	rules, err := p.kernel.Rules()
	if err != nil {
		return nil, err
	}
	routes, err := p.kernel.Routes(nl.RouteFilter{Table: nl.MainTable})
	if err != nil {
		return nil, err
	}
	pods := p.podAddrs()
	var found []Finding
	for _, r := range rules {
		h, ours := pods[r.From.Addr()]
		if !ours || !r.From.IsSingleIP() || r.Protocol == nl.RouteProtocol || isNeeded(r, routes) {
			continue
		}
		whose := "the next pod that gets the address"
		if h.Leased() {
			whose = h.Owner()
		}
		found = append(found, Finding{Severity: severe, About: r.String(),
			Means: fmt.Sprintf("%s has made this rule for an address of pods. Because of the rule, packets of %s to "+
				"Services and to other pods of the node take the wrong way", makerName(r), whose),
			Do: "delete the rule. Then enable cni-links.service, so that no program of the node configures the ENIs " +
				"of pods", fix: p.ruleFix(r), partly: true})
	}
	return found, nil
}

// podAddrs returns the addresses that pods have or can get. Pods can get the addresses of ENIs that serve pods, except
// the addresses of the node itself.
func (p *Node) podAddrs() map[netip.Addr]view.Holding {
	pods := map[netip.Addr]view.Holding{}
	for _, h := range view.Tally(p.state, p.conflists.ReuseWait, p.now()) {
		if h.State != view.StateNode && (h.Leased() || p.isForPods(h.ENI)) {
			pods[h.Addr] = h
		}
	}
	return pods
}

// fromPodPref is the preference of the rule that amazon-vpc-cni-k8s makes for each of its pods.
const fromPodPref = 1536

// isNeeded reports whether a running pod of amazon-vpc-cni-k8s needs the rule r. While such a pod runs, the node has a
// route to the pod, and none of our plugins has made this route.
func isNeeded(r nl.Rule, routes []nl.Route) bool {
	return r.Pref == fromPodPref && slices.ContainsFunc(routes, func(to nl.Route) bool {
		return to.Dst == r.From && to.Protocol != nl.RouteProtocol
	})
}

// makerName returns the name of the program that has made a rule. Each program uses certain preferences.
func makerName(r nl.Rule) string {
	switch {
	case r.Pref == 32765:
		return "nodeadm of EKS" // or amazon-vpc-cni-k8s, whose rules nodeadm copies
	case r.Pref == fromPodPref:
		return "amazon-vpc-cni-k8s"
	case r.Pref >= 30200 && r.Pref < 30500:
		return "nm-cloud-setup"
	case r.Pref >= 10000 && r.Pref < 12000:
		return "amazon-ec2-net-utils"
	}
	return "another program"
}

func (p *Node) ruleFix(r nl.Rule) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		return "deleted", nl.Wiring{{NS: p.pool.Host, Object: r}}.Del()
	}
}

// isForPods reports whether pods get addresses of an ENI. Other ENIs serve the node, or belong to another owner.
func (p *Node) isForPods(id string) bool {
	e := p.state.ENIs[id]
	serves := func(l conf.List) bool {
		first := l.IPAM.Policies()[0]
		return first.Serves(e) && (first.Requestable(e.Tags) || p.conflists.Misfit(e) == "")
	}
	return !e.Foreign && (len(p.ours) == 0 || slices.ContainsFunc(p.ours, serves))
}
