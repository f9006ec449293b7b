// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// lost looks for what the node has lost of what all pods share. It leaves out the sysctls,
// which checkSysctls checks. If a configuration cannot be read, checkConfig reports that.
func (p *Node) lost() ([]Finding, error) {
	networks, _ := conf.Networks(p.given)
	var found []Finding
	var failed error
	for _, n := range networks {
		w, err := repair.Lost(p.pool.Host, n)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("network %s: %w", n.Name, err))
		}
		for _, s := range w {
			k, is := s.Object.(nl.Sysctl)
			if !is || !slices.ContainsFunc(p.parameters(n.Pair), func(p parameter) bool { return p.Key == k.Key }) {
				found = append(found, p.lostOne(n, s))
			}
		}
		unpaired, err := p.unpaired(n)
		found, failed = append(found, unpaired...), errors.Join(failed, err)
		withoutIPv6, err := repair.WithoutIPv6(p.pool.Host, n, p.state)
		failed = errors.Join(failed, err)
		for _, l := range withoutIPv6 {
			found = append(found, p.withoutIPv6(n, l))
		}
	}
	return found, failed
}

// unpaired finds running pods whose veth pairs were deleted.
func (p *Node) unpaired(n conf.Network) (found []Finding, err error) {
	if p.state == nil {
		return nil, nil
	}
	lost, err := repair.Unpaired(p.pool.Host, n, p.state)
	for _, l := range lost {
		veth := ptp.VethName(n.Name, l.Attachment)
		found = append(found, Finding{Severity: severe, About: veth + " of " + view.Owner(l),
			Means: "somebody has deleted the veth pair of a running pod. The pod reaches the VPC, but neither its node, nor Services, nor the internet",
			Do:    "run " + cli.Name + " repair, as cni-gc.timer does, or delete the pod",
			fix: func(ctx context.Context) (string, error) {
				_, err := repair.Pairs(ctx, p.pool.Host, n)
				if _, e := p.pool.Host.LinkByName(veth); e == nil {
					err = nil
				}
				return "put back " + veth, err
			}})
	}
	return found, err
}

// withoutIPv6 returns the finding about a pod whose IPv6 the node has lost. The link is the
// pod's.
func (p *Node) withoutIPv6(n conf.Network, l nl.Link) Finding {
	return Finding{Severity: severe, About: l.Name + " (" + l.Alias + ")",
		Means: "the node has lost its IPv6 routes to the pod: somebody has disabled IPv6 on the node, and the kernel has removed all of them. Probes, Services and NodePorts fail by IPv6",
		Do: "set net.ipv6.conf.all.disable_ipv6 to 0, and give " + n.Pair.HostInterface + " its IPv6 address. Then run " + cli.Name + " repair, as cni-gc.timer does. " +
			"Delete pods that the registry does not know",
		fix: func(ctx context.Context) (string, error) {
			_, err := repair.IPv6(ctx, p.pool.Host, n)
			left, err2 := repair.WithoutIPv6(p.pool.Host, n, p.state)
			if err2 == nil && !slices.ContainsFunc(left, func(o nl.Link) bool { return o.Name == l.Name }) {
				err = nil
			}
			return "put back IPv6", err
		}}
}

func (p *Node) lostOne(n conf.Network, s nl.Step) Finding {
	a := Finding{Severity: severe, About: repair.Brief(s.Object), Means: "somebody has removed or changed it: pods reach only a part of the cluster",
		Do: "run " + cli.Name + " repair, as cni-gc.timer does; the next ADD puts it back, too", fix: p.repairNetwork(n, s)}
	switch s.Object.(type) {
	case nl.Route:
		a.Means = "the pod's route was removed with the node's address. Until it is repaired, traffic may use the wrong source, and a pod of an older release gets no answer from Services"
		a.Do = "run " + cli.Name + " repair, as cni-gc.timer does"
		return a
	case nl.Table:
	default:
		return a
	}
	switch err := s.Check(s.NS); {
	case errors.Is(err, fs.ErrNotExist):
		a.Means = "somebody has flushed the ruleset, and our table with all masquerading is gone. Pods reach neither Services nor the internet"
		a.Do += ". Have firewalld or nftables.service flush only their own tables"
	case err == nil || errors.Is(err, nl.ErrOtherRules):
		a.Severity, a.Means = warning, "the table is not what the configuration asks for. The configuration or the release has changed since the last ADD, or somebody has changed the table"
	default:
		a.Means = fmt.Sprintf("%v: its rules are there, and somebody has changed the rest. Pods may reach neither Services nor the internet", err)
	}
	return a
}

// repairNetwork is a fix that restores all that a network has lost, and with it this step. If
// only other steps fail, that is no error of this fix.
func (p *Node) repairNetwork(n conf.Network, s nl.Step) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		_, err := repair.Shared(p.pool.Host, n)
		if s.Check(s.NS) == nil {
			err = nil
		}
		return "put back " + repair.Brief(s.Object), err
	}
}
