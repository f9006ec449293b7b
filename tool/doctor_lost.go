// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// lost looks for what the node has of ours for all pods, but for the sysctls at which
// checkSysctls looks. That a configuration cannot be read, checkConfig says.
func (p *patient) lost() ([]ailment, error) {
	networks, _ := pairedNetworks(p.given)
	var found []ailment
	var failed error
	for _, n := range networks {
		w, err := ptp.Lost(p.pool.Host, n.name, n.pair)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("network %s: %w", n.name, err))
		}
		for _, s := range w {
			k, is := s.Object.(nl.Sysctl)
			if !is || !slices.ContainsFunc(p.parameters(n.pair), func(p parameter) bool { return p.Key == k.Key }) {
				found = append(found, p.lostOne(n, s))
			}
		}
		severed, err := n.severed(p.pool.Host, p.state)
		failed = errors.Join(failed, err)
		for _, l := range severed {
			found = append(found, p.severed(n, l))
		}
	}
	return found, failed
}

// severed is about a pod without IPv6 by the node, whose link this is.
func (p *patient) severed(n paired, l nl.Link) ailment {
	return ailment{Severity: severe, About: l.Name + " (" + l.Alias + ")",
		Means: "the node has no way to the pod by IPv6 any more: somebody has disabled IPv6 on the node, and the kernel has taken all routes. Probes, services and NodePorts fail by IPv6",
		Do: "have net.ipv6.conf.all.disable_ipv6 0, and an IPv6 address on " + n.pair.HostInterface + "; then put it back from the registry, as cni-gc.timer does; " +
			"a pod that the registry does not know is to be deleted",
		fix: func(context.Context) (string, error) {
			_, err := rejoin(p.pool.Host, n)
			left, err2 := n.severed(p.pool.Host, p.state)
			if err2 == nil && !slices.ContainsFunc(left, func(o nl.Link) bool { return o.Name == l.Name }) {
				err = nil
			}
			return "put back IPv6", err
		}}
}

func (p *patient) lostOne(n paired, s nl.Step) ailment {
	a := ailment{Severity: severe, About: brieflyOf(s.Object), Means: "it is gone, or is not so any more: pods reach some of the cluster, and not all",
		Do: "put it back, as cni-gc.timer does, and the next ADD", fix: p.mendNetwork(n, s)}
	switch s.Object.(type) {
	case nl.Route:
		a.Means = "the node's route to a pod went with the node's address, which has come again since: by the spare one it is called from any address; where there is none, of a pod of an older release, services do not answer it"
		a.Do = "put it back, as cni-gc.timer does"
		return a
	case nl.Table:
	default:
		return a
	}
	switch err := s.Check(s.NS); {
	case errors.Is(err, fs.ErrNotExist):
		a.Means = "the table is gone, with all masquerading: somebody has flushed the ruleset. Pods reach neither services nor the internet"
		a.Do += ". Let firewalld or nftables.service flush only what is theirs"
	case err == nil || errors.Is(err, nl.ErrOtherRules):
		a.Severity, a.Means = doubted, "the table is not what the configuration asks for: that, or the release, has changed since the last ADD, or somebody has been at it"
	default:
		a.Means = fmt.Sprintf("%v: its rules are there, and somebody has been at the rest. Pods may reach neither services nor the internet", err)
	}
	return a
}

// mendNetwork is a fix that puts back all that a network has lost, this step among it. That
// another step fails is not this one's error.
func (p *patient) mendNetwork(n paired, s nl.Step) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		_, err := ptp.Mend(p.pool.Host, n.name, n.pair)
		if s.Check(s.NS) == nil {
			err = nil
		}
		return "put back " + brieflyOf(s.Object), err
	}
}
