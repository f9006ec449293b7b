// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"context"
	"errors"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// delPair deletes the host end of a pair, with which the kernel takes its routes and
// neighbours away, and the rules about it.
func delPair(host *nl.NS, veth string) error {
	return errors.Join(host.DelRules(veth), nl.Wiring{{NS: host, Object: nl.Veth{Name: veth}}}.Del())
}

// gc deletes the pairs of this network whose attachments are not valid any more,
// and the rules of any pair that is gone: ours, and the original plugin's, which took its
// own away only if it masqueraded. What serves the others it puts back.
func gc(_ context.Context, r *plugin.Request[Config]) error {
	host, err := nl.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	links, err := host.Links()
	if err != nil {
		return err
	}
	valid := make(map[string]bool, len(r.Valid))
	for _, a := range r.Valid {
		valid[vethName(r.Network, a)] = true
	}
	var errs []error
	for _, l := range links {
		if l.Kind == "veth" && !valid[l.Name] && (networkOf(l.Alias) == r.Network || halfMade(l)) {
			errs = append(errs, delPair(host, l.Name))
		}
	}
	_, detached := host.RemoveDetachedOf(func(r nl.Rule) bool { return r.Protocol == nl.RouteProtocol || originals(r) })
	_, lost := Mend(host, r.Network, r.Config)
	return errors.Join(append(errs, detached, lost)...)
}

// halfMade says that an ADD was killed when it had made a pair and not yet given it the
// alias, with which it goes up. One that has come so far just now, of this network or
// another, loses the pair, fails, and is tried again.
func halfMade(l nl.Link) bool {
	return l.Group == nl.OwnGroup && l.Alias == "" && !l.Up
}
