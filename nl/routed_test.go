// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestRoutedGroup: the group and the routing table of each ENI tell the index of its link. No group of a pod's links
// and no table of others is one of these.
func TestRoutedGroup(t *testing.T) {
	for _, index := range []int{1, 2, 255, 1 << 20, 1<<24 - 1} {
		group, table := nl.RoutedGroup(index), nl.RoutedTable(index)
		if !nl.IsRouted(group) || !nl.IsPair(group) || nl.RoutedTable(int(group)) != table {
			t.Errorf("the group of link %d is %#x, its table %#x", index, group, table)
		}
		if got, is := nl.OfRoutedTable(table); !is || got != index {
			t.Errorf("the table of link %d is said to be that of %d, %v", index, got, is)
		}
	}
	own := nl.PodGroup([]byte{1, 2, 3, 4, 5, 6})
	for _, group := range []uint32{0, nl.OwnGroup, own, nl.FurtherGroup(own), 77 << 24} {
		if nl.IsRouted(group) || nl.IsPair(group) != (group == nl.OwnGroup) {
			t.Errorf("%#x is taken for the group of a routed pair", group)
		}
	}
	for _, table := range []uint32{nl.MainTable, 255, 1<<31 + 72, 1 << 30, 1<<30 + 1<<24, 0xffffffff} {
		if _, is := nl.OfRoutedTable(table); is {
			t.Errorf("%d is taken for the table of an ENI", table)
		}
	}
}

// claims are two tables of one name.
func claims() (one, other nl.Table) {
	of := func(mark uint32) nl.Table {
		return nl.Table{Family: "inet", Name: "claimed", Chains: []nl.Chain{{Name: "prerouting", Type: "filter",
			Hook: "prerouting", Priority: -150, Rules: []nl.NFRule{{nl.IIFRouted(), nl.SetMarkBits(mark, 0x1fe0)}}}}}
	}
	return of(0x20), of(0x40)
}

// TestClaim: a table that is there is nobody else's. Of two that claim a name at the same time, one gets it.
func TestClaim(t *testing.T) {
	nltest.Need(t, "nftables")
	n, path := nltest.NS(t, "host")
	one, other := claims()
	claim := func(table nl.Table, want bool) {
		t.Helper()
		if own, err := table.Claim(n); own != want || err != nil {
			t.Errorf("Claim: %v, %v, want %v", own, err, want)
		}
	}
	claim(one, true)
	claim(one, true)
	claim(other, false)
	if err := one.Check(n); err != nil {
		t.Error(err)
	}
	for range 20 {
		if err := (nl.Wiring{{NS: n, Object: one}}).Del(); err != nil {
			t.Fatal(err)
		}
		got := make(chan string, 6)
		for i := range 6 {
			go func() {
				table := []nl.Table{one, other}[i%2]
				own := false
				process, err := nl.Open("host", path)
				if err == nil {
					own, err = table.Claim(process)
					process.Close()
				}
				got <- fmt.Sprint(i%2, own, err)
			}()
		}
		var all []string
		for range 6 {
			all = append(all, <-got)
		}
		slices.Sort(all)
		text := strings.Join(all, " ")
		ones := "0 true <nil> 0 true <nil> 0 true <nil> 1 false <nil> 1 false <nil> 1 false <nil>"
		others := "0 false <nil> 0 false <nil> 0 false <nil> 1 true <nil> 1 true <nil> 1 true <nil>"
		if text != ones && text != others {
			t.Fatalf("both, or neither, have claimed the name: %s", text)
		}
	}
}

// TestNeighbours: the permanent neighbours of each link are listed, and no neighbour that the kernel has learned.
func TestNeighbours(t *testing.T) {
	host, pod := two(t)
	w := nl.Wiring{
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}},
		{host, nl.Veth{Name: "veth2", Peer: "eth2", PeerNS: pod}},
		{host, nl.Neigh{Addr: netip.MustParseAddr("10.0.1.50"), MAC: "02:00:00:00:00:01", Dev: "veth1"}},
		{host, nl.Neigh{Addr: netip.MustParseAddr("fd00::50"), MAC: "02:00:00:00:00:01", Dev: "veth1"}},
		{host, nl.Neigh{Addr: netip.MustParseAddr("10.0.1.51"), MAC: "02:00:00:00:00:02", Dev: "veth2"}},
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	const learned = "ip neigh add 10.0.1.52 lladdr 02:00:00:00:00:03 dev veth1 nud reachable; " +
		"ip neigh add 10.0.1.53 lladdr 02:00:00:00:00:03 dev veth1 nud stale; " +
		"ip neigh add proxy 10.0.1.54 dev veth1; ip -6 neigh add fd00::52 lladdr 02:00:00:00:00:03 dev veth1 nud stale"
	if err := host.Do(func() error { return exec.Command("sh", "-c", learned).Run() }); err != nil {
		t.Fatal(err)
	}
	all, err := host.Neighbours()
	if err != nil {
		t.Fatal(err)
	}
	for dev, want := range map[string]string{"veth1": "[10.0.1.50 fd00::50]", "veth2": "[10.0.1.51]"} {
		l, err := host.LinkByName(dev)
		if err != nil {
			t.Fatal(err)
		}
		got := slices.SortedFunc(slices.Values(all[l.Index]), netip.Addr.Compare)
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", dev, got, want)
		}
	}
}

// TestVacantRouted: a routed pair, or a route to a routed pod, shows that there is a pod. What serves the pods of an
// ENI does not, and RemoveShared removes it.
func TestVacantRouted(t *testing.T) {
	nltest.Need(t, "nftables")
	host, pod := two(t)
	add := func(objects ...nl.Object) {
		t.Helper()
		for _, o := range objects {
			if err := (nl.Wiring{{host, o}}).Add(); err != nil {
				t.Fatal(err)
			}
		}
	}
	p := netip.MustParsePrefix
	add(nl.Veth{Name: "eni", Peer: "vpc", PeerNS: pod}, nl.Addr{Prefix: p("10.0.1.9/24"), Dev: "eni"},
		nl.Table{Family: "arp", Name: "others", Chains: asking().Chains},
		nl.Route{Dst: p("10.0.0.0/16"), Dev: "eni", Table: nl.RoutedTable(9)},
		nl.Rule{Pref: 1023, Mark: 0x20, Mask: 0x1fe0, Table: nl.RoutedTable(9)})
	bare := nltest.Dump(t, host)
	one, _ := claims()
	one.Name = nl.OwnTable + "._eni.1"
	routed := nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod, Group: nl.RoutedGroup(7)}
	add(nl.RoutedAddr("eni"), nl.Table{Family: "arp", Name: nl.OwnTable + "._ask.eni", Chains: asking().Chains}, one,
		nl.Route{Dst: p("10.1.0.0/16"), Dev: "eni", Table: nl.RoutedTable(7), Protocol: nl.RouteProtocol},
		nl.Route{Dst: p("10.2.0.0/16"), Type: "throw", Table: nl.RoutedTable(7), Protocol: nl.RouteProtocol},
		nl.Rule{Pref: 1023, Mark: 0x20, Mask: 0x1fe0, Table: nl.RoutedTable(7), Protocol: nl.RouteProtocol})
	served := nltest.Dump(t, host)
	for why, o := range map[string]nl.Object{
		"a pair":  routed,
		"a route": nl.Route{Dst: p("10.0.1.50/32"), Dev: "eni", Protocol: nl.RouteProtocol},
		"a route of a pod's table": nl.Route{Dst: p("10.0.1.50/32"), Dev: "eni", Table: 1<<31 + 72,
			Protocol: nl.RouteProtocol},
	} {
		add(o)
		if removed, err := host.RemoveShared(); removed || err != nil {
			t.Errorf("%s: removed %v, %v", why, removed, err)
		}
		if err := (nl.Wiring{{host, o}}).Del(); err != nil {
			t.Fatal(err)
		}
		if got := nltest.Dump(t, host); got != served {
			t.Errorf("%s:\n%s\nwant\n%s", why, got, served)
		}
	}
	if err := host.Vacant(); err != nil {
		t.Error(err)
	}
	for _, want := range []bool{true, false} {
		if removed, err := host.RemoveShared(); removed != want || err != nil || nltest.Dump(t, host) != bare {
			t.Errorf("no pod: removed %v, %v:\n%s\nwant\n%s", removed, err, nltest.Dump(t, host), bare)
		}
	}
}
