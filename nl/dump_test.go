// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestDump: the dump has our tables and our BPF programs. It has no tables of other software, no comments and no log
// prefixes.
func TestDump(t *testing.T) {
	host, pod := two(t)
	w := nl.Wiring{
		{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}},
		{pod, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}},
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	rules := "add table inet cni_ipvlan_vpc_k8s_x; add chain inet cni_ipvlan_vpc_k8s_x c { type filter hook forward " +
		"priority 5; policy drop; }; add rule inet cni_ipvlan_vpc_k8s_x c ip daddr 10.9.9.9 log prefix \"secret1\" " +
		"counter comment \"secret2\"; add table ip secret3"
	err := host.Do(func() error {
		out, err := exec.Command("nft", rules).CombinedOutput()
		t.Logf("%s", out)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	tables, err := host.DumpTables()
	if err != nil || len(tables) != 1 || len(tables[0].Chains) != 1 || len(tables[0].Chains[0].Rules) != 1 {
		t.Fatalf("%+v, %v", tables, err)
	}
	c := tables[0].Chains[0]
	rule := c.Rules[0]
	c.Rules = nil
	want := nl.ChainDump{Name: "c", Type: "filter", Hook: "forward", Priority: 5, Policy: "drop"}
	if tables[0].Name != "inet cni_ipvlan_vpc_k8s_x" || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v", tables)
	}
	if !slices.Contains(rule, "log") || !slices.Contains(rule, "counter packets 0") ||
		!strings.HasPrefix(rule[0], "meta ") {
		t.Errorf("the rule is %q", rule)
	}
	links, err := pod.Links()
	if err != nil {
		t.Fatal(err)
	}
	filters, err := pod.DumpFilters(links)
	if err != nil || len(filters) < 2 {
		t.Fatalf("%+v, %v", filters, err)
	}
	for _, f := range filters {
		if !slices.Contains([]string{"eth0", "eth1"}, f.Link) || f.Hook == "" || f.ID == 0 || len(f.Tag) != 16 ||
			!strings.HasPrefix(f.Name, nl.OwnTable+":") {
			t.Errorf("%+v", f)
		}
	}
}
