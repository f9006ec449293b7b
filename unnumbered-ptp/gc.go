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

// gc deletes the pairs of this network whose attachments are not valid any more,
// and the rules of any pair that is gone. What serves the others it puts back.
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
		if l.Kind == "veth" && !valid[l.Name] && (networkOf(l.Alias) == r.Network || halfMade(l)) {
			errs = append(errs, unwiring(host, l.Name, rules).Del())
			continue
		}
		alive[l.Name] = true
	}
	errs = append(errs, stale(host, rules, alive).Del())
	_, err = Mend(host, r.Network, r.Config)
	errs = append(errs, err)
	return errors.Join(errs...)
}

// halfMade says that an ADD was killed when it had made a pair and not yet given it the
// alias, with which it goes up. One that has come so far just now, of this network or
// another, loses the pair, fails, and is tried again.
func halfMade(l nl.Link) bool {
	return l.Group == nl.OwnGroup && l.Alias == "" && !l.Up
}

// stale are the rules for pods whose veths are no more, the original plugin's
// among them, which took its own away only if it masqueraded.
func stale(host *nl.NS, rules []nl.Rule, alive map[string]bool) nl.Wiring {
	var w nl.Wiring
	for _, r := range rules {
		if (r.Pref == prefPod || r.Pref == prefHost) && strings.HasPrefix(r.IIF, "veth") && !alive[r.IIF] {
			w = append(w, nl.Step{NS: host, Object: r})
		}
	}
	return w
}
