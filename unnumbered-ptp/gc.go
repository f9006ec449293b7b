// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"context"
	"errors"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// unwiring is what hangs on the host end of a pair: its rules, and the pair
// itself, with which the kernel takes its routes and neighbours away.
func unwiring(host *nl.NS, veth string, rules []nl.Rule) nl.Wiring {
	w := nl.Wiring{{NS: host, Object: nl.Veth{Name: veth}}}
	for _, r := range rules {
		if r.IIF == veth {
			w = append(w, nl.Step{NS: host, Object: r})
		}
	}
	return w
}

// formerWiring is what the original plugin has left of a pod that it made, when
// that is deleted after an upgrade: a veth of a random name, the other end of the
// pod's, and the rule by which we know it. The chain of iptables that it made for the
// pod stays; it does to the next pod of that address what that needs anyhow.
func formerWiring(host, pod *nl.NS, c Config, rules []nl.Rule) nl.Wiring {
	far, err := pod.LinkByName(c.ContainerInterface)
	if err != nil || far.Kind != "veth" {
		return nil
	}
	for _, r := range rules {
		if r.Pref != prefPod || r.Protocol == nl.RouteProtocol || !strings.HasPrefix(r.IIF, "veth") {
			continue
		}
		near, err := host.LinkByName(r.IIF)
		if err == nil && near.Index == far.Peer && near.Peer == far.Index && near.Kind == "veth" {
			return unwiring(host, near.Name, rules)
		}
	}
	return nil
}

// gc deletes the pairs of this network whose attachments are not valid any more,
// and the rules of any pair that is gone.
func gc(_ context.Context, r *plugin.Request[Config]) error {
	host, err := nl.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	rules, err := host.Rules() // before the links: a link is there before its rules
	if err != nil {
		return err
	}
	links, err := host.Links()
	if err != nil {
		return err
	}
	valid := make(map[string]bool, len(r.Valid))
	for _, a := range r.Valid {
		valid[vethName(r.Network, a)] = true
	}
	var errs []error
	alive := map[string]bool{}
	for _, l := range links {
		if l.Kind == "veth" && networkOf(l.Alias) == r.Network && !valid[l.Name] {
			errs = append(errs, unwiring(host, l.Name, rules).Del())
			continue
		}
		alive[l.Name] = true
	}
	errs = append(errs, stale(host, rules, alive).Del())
	return errors.Join(errs...)
}

// stale are the rules for pods whose veths are no more, the original plugin's
// among them, which took its own away only if it masqueraded.
func stale(host *nl.NS, rules []nl.Rule, alive map[string]bool) nl.Wiring {
	var w nl.Wiring
	for _, r := range rules {
		if r.Pref == prefPod && strings.HasPrefix(r.IIF, "veth") && !alive[r.IIF] {
			w = append(w, nl.Step{NS: host, Object: r})
		}
	}
	return w
}
