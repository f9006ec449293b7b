// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp/legacy"
)

// gc deletes the pairs of this network whose attachments are not valid any more, and the rules of any pair that is
// gone. gc also repairs the objects that serve the other pods.
func gc(r *request) error {
	links, err := r.nodeNS.Links()
	if err != nil {
		return err
	}
	existing := r.Valid
	if r.Added != nil { // the pairs were listed before: an ADD leases first
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
		// Another program may have removed the name.
		known := valid[l.MAC] || slices.ContainsFunc(l.Names(), func(name string) bool { return valid[name] })
		if l.Kind == "veth" && !known && (networkOf(l.Alias) == r.Network || halfMade(l)) {
			errs = append(errs, r.nodeNS.DelPair(l))
		}
	}
	_, detached := RemoveDetached(r.nodeNS)
	_, lost := Repair(r.nodeNS, r.Network, r.Config)
	return errors.Join(append(errs, detached, lost, removeGone(r.nodeNS))...)
}

// RemoveDetached deletes the rules of pairs that are gone, and returns them. The original plugin's
// are among them: it deleted its own rules only if it masqueraded.
func RemoveDetached(node *nl.NS) ([]nl.Rule, error) { return node.RemoveDetached(OfPair) }

// OfPair reports whether a rule is one for a pair, of ours or of the original plugin.
func OfPair(r nl.Rule) bool { return r.Protocol == nl.RouteProtocol || legacy.IsRule(r) }

// halfMade reports whether an ADD was killed after it made a pair and before it gave the pair
// its alias and set it up. If an ADD of any network is just there, it loses the pair, fails,
// and is tried again.
func halfMade(l nl.Link) bool {
	return nl.IsPair(l.Group) && l.Alias == "" && !l.Up
}

// removeGone deletes the objects of ENIs whose links are gone. Routes that name no link outlive it.
func removeGone(node *nl.NS) error {
	gone := func(eni int, is bool) bool { return is && !node.HasLink(eni) }
	rules, err := node.Rules()
	routes, err2 := node.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	var w nl.Wiring
	for _, r := range routes {
		if gone(nl.OfRoutedTable(r.Table)) {
			w = append(w, nl.Step{NS: node, Object: r})
		}
	}
	for _, r := range rules {
		eni, is := ofENI(r)
		if !gone(eni, is) {
			continue
		}
		w = append(w, nl.Step{NS: node, Object: r})
		if b := (eniMark{eni: eni}).branch(r.Mark >> markShift); b.Check(node) == nil { // otherwise another ENI has it
			w = append(w, nl.Step{NS: node, Object: b})
		}
	}
	return errors.Join(err, err2, w.Del())
}
