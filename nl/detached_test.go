// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestRemoveDetached: RemoveDetached deletes our rules for links that are gone, in both families. It keeps rules for
// existing links, rules for no link, and rules of other programs.
func TestRemoveDetached(t *testing.T) {
	host, pod := two(t)
	rule := func(pref int, iif string, family nl.Family, protocol int) nl.Rule {
		return nl.Rule{Pref: pref, IIF: iif, Family: family, Table: uint32(pref), Protocol: protocol}
	}
	ours := func(r nl.Rule) bool { return r.Protocol == nl.RouteProtocol }
	const other = 4 // static
	stay := []nl.Rule{
		rule(1000, "veth1", nl.IPv4, nl.RouteProtocol),
		rule(1001, "veth1", nl.IPv6, nl.RouteProtocol),
		rule(1002, "", nl.IPv4, nl.RouteProtocol),
		rule(1003, "veth9", nl.IPv4, other),
	}
	gone := []nl.Rule{
		rule(2000, "veth2", nl.IPv4, nl.RouteProtocol),
		rule(2001, "veth2", nl.IPv6, nl.RouteProtocol),
	}
	link := func(name, peer string) nl.Wiring {
		return nl.Wiring{{host, nl.Veth{Name: name, Peer: peer, PeerNS: pod}}}
	}
	w := append(link("veth1", "eth1"), link("veth2", "eth2")...)
	for _, r := range append(stay, gone...) {
		w = append(w, nl.Step{NS: host, Object: r})
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	if removed, err := host.RemoveDetached(ours); err != nil || len(removed) > 0 {
		t.Errorf("all links are there: removed %v, %v", removed, err)
	}
	if err := link("veth2", "eth2").Del(); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]nl.Rule{gone, nil} {
		removed, err := host.RemoveDetached(ours)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(removed, want) {
			t.Errorf("time %d: removed %v, want %v", i+1, removed, want)
		}
	}
	for _, r := range stay {
		if err := r.Check(host); err != nil {
			t.Errorf("%s: %v", r, err)
		}
	}
}
