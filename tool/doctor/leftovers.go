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
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// checkLeftovers looks for objects that pods have left behind, and for objects that the node or running pods have lost.
func (p *Node) checkLeftovers(context.Context) ([]Finding, error) {
	found, err := p.leftBehind(p.state)
	if err != nil || p.pool == nil {
		return found, err
	}
	if found, err = p.stillLeft(found); err != nil {
		return nil, err
	}
	lost, err := p.lostObjects()
	return append(found, lost...), err
}

// stillLeft calls leftBehind again, with the present registry. It returns only the findings that both calls have. Pods
// start and end while leftBehind reads, so a finding of one call may be wrong. The present registry has the lease of a
// pod that has just started, because an ADD makes the lease before the veth. The second call finds no objects of a pod
// that has just ended.
func (p *Node) stillLeft(found []Finding) ([]Finding, error) {
	if len(found) == 0 {
		return nil, nil
	}
	s, err := p.pool.Registry.View()
	if err != nil {
		s = &registry.State{} // checkState reports err
	}
	again, err := p.leftBehind(s)
	return slices.DeleteFunc(found, func(f Finding) bool {
		return !slices.ContainsFunc(again, func(a Finding) bool { return a.About == f.About && a.Means == f.Means })
	}), err
}

// leftBehind returns the rules whose links are gone, and the veths without a lease.
func (p *Node) leftBehind(s *registry.State) ([]Finding, error) {
	rules, err1 := p.kernel.Rules()
	links, err2 := p.kernel.Links()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rules {
		here := slices.ContainsFunc(links, func(l nl.Link) bool { return l.Name == r.IIF })
		if !ptp.OfPair(r) || r.IIF == "" || here {
			continue
		}
		found = append(found, Finding{Severity: warning, About: r.String(),
			Means: "the link of this rule is gone. A pod ended without a DEL, or another program has deleted the " +
				"veth pair of a running pod. The kernel still compares each packet with the rule",
			Do:  "run " + cli.Name + " registry-gc --free-after=15m, and check that cni-gc.timer is active",
			fix: p.removeDetached, partly: true})
	}
	for _, l := range links {
		if owner := strayVeth(s, l); owner != "" {
			found = append(found, Finding{Severity: warning, About: l.Name, Means: "this veth belongs to " + owner +
				", which has no lease. Another pod may get the address to which this veth leads",
				Do: "if the pod is gone, run: ip link del " + l.Name + ". Otherwise delete the pod"})
		}
	}
	return found, nil
}

// removeDetached is a fix that deletes the rules of all pairs that are gone at the time of the fix.
func (p *Node) removeDetached(context.Context) (string, error) {
	_, err := ptp.RemoveDetached(p.pool.Host)
	return "deleted", err
}

// strayVeth returns the attachment of one of our veths if the attachment has no lease, and otherwise "". The alias of
// such a link has the network, the container and the interface. In a rebuilt registry, a lease may lack its container.
// The link may then belong to this lease, so strayVeth returns "".
func strayVeth(s *registry.State, l nl.Link) string {
	words := strings.Fields(l.Alias)
	if !nl.IsPair(l.Group) || l.Kind != "veth" || len(words) < 4 {
		return ""
	}
	if len(s.ENIs) == 0 {
		return "" // the registry was lost, so no lease can be compared
	}
	key := registry.Key{Network: words[1], Attachment: registry.Attachment{ContainerID: words[2], IfName: words[3]}}
	for _, lease := range s.Leases.All() {
		if lease.Key == key || lease.ContainerID == "" {
			return ""
		}
	}
	return key.String()
}
