// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
)

// checkLeftovers looks for objects that pods have left behind, and for lost objects that all pods of the node share.
func (p *Node) checkLeftovers(context.Context) ([]Finding, error) {
	rules, err1 := p.kernel.Rules()
	links, err2 := p.kernel.Links()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rules {
		here := slices.ContainsFunc(links, func(l nl.Link) bool { return l.Name == r.IIF })
		if !repair.OfPod(r) || r.IIF == "" || here {
			continue
		}
		found = append(found, Finding{Severity: warning, About: r.String(),
			Means: "the link of this rule is gone. A pod ended without a DEL, or another program has deleted the " +
				"veth pair of a running pod. The kernel still compares each packet with the rule",
			Do:  "run " + cli.Name + " registry-gc --free-after=15m, and check that cni-gc.timer is active",
			fix: p.removeDetached})
	}
	for _, l := range links {
		if owner := p.strayVeth(l); owner != "" {
			found = append(found, Finding{Severity: warning, About: l.Name, Means: "this veth belongs to " + owner +
				", which has no lease. Another pod may get its address",
				Do: "if the pod is gone, run: ip link del " + l.Name + ". Otherwise delete the pod"})
		}
	}
	if p.pool == nil {
		return found, nil
	}
	lost, err := p.lost()
	return append(found, lost...), err
}

// removeDetached is a fix that deletes all rules of pods whose links are gone. It first checks the rules again.
func (p *Node) removeDetached(context.Context) (string, error) {
	_, err := repair.RemoveDetached(p.pool.Host)
	return "deleted", err
}

// strayVeth returns the attachment of one of our veths if the attachment has no lease. Otherwise strayVeth returns "".
// The alias of the veth names the attachment: our name, the network, the container and the interface. After a loss of
// the registry, a lease may have no container. The veth may then belong to this lease, so strayVeth returns "".
func (p *Node) strayVeth(l nl.Link) string {
	words := strings.Fields(l.Alias)
	if !nl.IsPair(l.Group) || l.Kind != "veth" || len(words) < 4 {
		return ""
	}
	if len(p.state.ENIs) == 0 {
		return "" // the registry is empty, and the next process finds the pods
	}
	key := registry.Key{Network: words[1], Attachment: registry.Attachment{ContainerID: words[2], IfName: words[3]}}
	for _, lease := range p.state.Leases.All() {
		if lease.Key == key || lease.ContainerID == "" {
			return ""
		}
	}
	return key.String()
}
