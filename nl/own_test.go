// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestRemoveShared: as long as a link or a route of ours belongs to a pod, RemoveShared keeps the objects that serve
// all pods. After that, RemoveShared deletes these objects. Objects of other programs stay.
func TestRemoveShared(t *testing.T) {
	nltest.Need(t, "nftables")
	host, _ := nltest.NS(t, "host")
	pod, path := nltest.NS(t, "pod")
	add := func(objects ...nl.Object) {
		t.Helper()
		for _, o := range objects {
			if err := (nl.Wiring{{NS: host, Object: o}}).Add(); err != nil {
				t.Fatal(err)
			}
		}
	}
	rule := nl.Rule{Pref: 512, Mark: 0x2000, Mask: 0x2000, Table: nl.MainTable}
	table := nl.Table{Family: "inet", Name: "others",
		Chains: []nl.Chain{{Name: "forward", Type: "filter", Hook: "forward", Rules: []nl.NFRule{{nl.Count()}}}}}
	add(rule, table, nl.Veth{Name: "vethothers", Peer: "eth2", PeerNS: pod})
	bare := nltest.Dump(t, host)
	rule.Protocol = nl.RouteProtocol
	table.Name = nl.OwnTable
	pair := nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod, Group: nl.OwnGroup}
	add(rule, table, pair)
	keeps := func(why string) {
		t.Helper()
		before := nltest.Dump(t, host)
		if removed, err := host.RemoveShared(); removed || err != nil || nltest.Dump(t, host) != before {
			t.Fatalf("%s: removed %v, %v:\n%s", why, removed, err, nltest.Dump(t, host))
		}
	}
	keeps("a pod")
	if err := (nl.Wiring{{NS: host, Object: pair}}).Del(); err != nil {
		t.Fatal(err)
	}
	route := nl.Route{Dst: netip.MustParsePrefix("10.0.1.5/32"), Dev: "lo", Protocol: nl.RouteProtocol}
	add(route)
	keeps("a route")
	if err := (nl.Wiring{{NS: host, Object: route}}).Del(); err != nil {
		t.Fatal(err)
	}
	nltest.Remove(t, path)
	for _, want := range []bool{true, false} {
		if removed, err := host.RemoveShared(); removed != want || err != nil || nltest.Dump(t, host) != bare {
			t.Errorf("no pod: removed %v, %v:\n%s\nwant\n%s", removed, err, nltest.Dump(t, host), bare)
		}
	}
}

// TestOwnTableOf: each network has its own table. Most tables have the name that earlier releases gave them.
func TestOwnTableOf(t *testing.T) {
	for network, want := range map[string]string{
		"cni-ipvlan-vpc-k8s":     "cni_ipvlan_vpc_k8s",
		"net":                    "cni_ipvlan_vpc_k8s_net",
		"a-b":                    "cni_ipvlan_vpc_k8s_a_b",
		"a.b":                    "cni_ipvlan_vpc_k8s.a.b",
		"a_b":                    "cni_ipvlan_vpc_k8s.a_b",
		"cni_ipvlan_vpc_k8s":     "cni_ipvlan_vpc_k8s.cni_ipvlan_vpc_k8s",
		"cni-ipvlan-vpc-k8s-a-b": "cni_ipvlan_vpc_k8s_cni_ipvlan_vpc_k8s_a_b",
	} {
		if got := nl.OwnTableOf(network); got != want {
			t.Errorf("%s: %s, want %s", network, got, want)
		}
	}
	owners := map[string]string{}
	for _, network := range structOf("ab1-_.", 5) {
		table := nl.OwnTableOf(network)
		if other, taken := owners[table]; taken {
			t.Fatalf("%s and %s have the table %s", other, network, table)
		}
		owners[table] = network
	}
}

// structOf returns all words of 1 to n letters.
func structOf(letters string, n int) (all []string) {
	last := []string{""}
	for range n {
		var longer []string
		for _, w := range last {
			for _, l := range letters {
				longer = append(longer, w+string(l))
			}
		}
		all, last = append(all, longer...), longer
	}
	return all
}
