// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp/legacy"
)

// gc deletes the network's pairs whose attachments are not valid any more. For all networks, it deletes the rules of
// pairs that are gone. It also repairs the objects that serve the other pods.
func gc(r *request) error {
	links, err := r.nodeNS.Links()
	if err != nil {
		return err
	}
	existing := r.Valid
	// Call Added after Links: an ADD first leases its address, and then makes its pair. Added reads the leases.
	if r.Added != nil {
		added, err := r.Added()
		if err != nil {
			return err
		}
		existing = append(slices.Clip(existing), added...)
	}
	valid := make(map[string]bool, len(existing))
	for _, a := range existing {
		near, _ := macs(r.Network, a)
		valid[VethName(r.Network, a)], valid[near] = true, true
	}
	var errs []error
	for _, l := range links {
		// the MAC address shows the attachment even if another program has removed the alternative name
		known := valid[l.MAC] || slices.ContainsFunc(l.Names(), func(name string) bool { return valid[name] })
		if l.Kind == "veth" && !known && (networkInAlias(l.Alias) == r.Network || isHalfMade(l)) {
			errs = append(errs, r.nodeNS.DelPair(l))
		}
	}
	_, detached := RemoveDetached(r.nodeNS)
	_, gone := RemoveGone(r.nodeNS)
	_, lost := Repair(r.nodeNS, r.Network, r.Config)
	return errors.Join(append(errs, detached, gone, lost)...)
}

// RemoveDetached deletes the rules of pairs that are gone, and returns these rules. Some of them are rules of the
// original plugin, because that plugin deleted its rules only if it masqueraded.
func RemoveDetached(node *nl.NS) ([]nl.Rule, error) { return node.RemoveDetached(OfPair) }

// OfPair reports whether a rule is for a pair: a rule of ours, or of the original plugin.
func OfPair(r nl.Rule) bool { return r.Protocol == nl.RouteProtocol || legacy.IsRule(r) }

// isHalfMade reports whether a pair has no alias and is not up. Most often, the ADD of such a pair was killed. The ADD
// may be of any network, and may still run. If gc deletes the pair of a running ADD, this ADD fails, and the runtime
// tries again.
func isHalfMade(l nl.Link) bool {
	return nl.IsPair(l.Group) && l.Alias == "" && !l.Up
}
