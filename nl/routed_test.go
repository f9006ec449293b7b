// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestRoutedGroup: the group and the routing table of an ENI are computed from its link's index. They differ from the
// groups of pods' links, and from other tables.
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

// claims returns two branches that need the same chain.
func claims() (one, other nl.Branch) {
	t := nl.Table{Family: "inet", Name: "claimed", More: true, Chains: []nl.Chain{{Name: "prerouting", Type: "filter",
		Hook: "prerouting", Priority: -150, Rules: []nl.NFRule{{nl.ByIIFGroup()}, {nl.ByIIF()}}}}}
	of := func(eni int, mark uint32) nl.Branch {
		set := nl.NFRule{nl.SetMarkBits(mark, 0x1fe0)}
		return nl.Branch{Table: t, Group: nl.RoutedGroup(eni), Chain: "mark_1", Rules: []nl.NFRule{{nl.CTReply(),
			nl.Accept()}, set}, Link: eni, Arrived: []nl.NFRule{set}}
	}
	return of(1, 0x20), of(2, 0x40)
}

// TestBranchClaim: a chain belongs to one group. If two groups claim a chain at the same time, exactly one group gets
// it.
func TestBranchClaim(t *testing.T) {
	nltest.Need(t, "nftables")
	n, path := nltest.NS(t, "host")
	one, other := claims()
	if err := (nl.Wiring{{NS: n, Object: one.Table}}).Add(); err != nil {
		t.Fatal(err)
	}
	claim := func(b nl.Branch, taken bool) {
		t.Helper()
		if chain, is, err := b.Claim(n); is != taken || err != nil || !taken && chain != b.Chain {
			t.Errorf("Claim: %s, %v, %v, want %v", chain, is, err, taken)
		}
	}
	if err := one.Check(n); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check before Add: %v", err)
	}
	claim(one, false)
	claim(one, false)
	claim(other, true)
	if err := errors.Join(one.Check(n), one.Table.Check(n)); err != nil {
		t.Error(err)
	}
	for range 20 {
		for _, b := range []nl.Branch{one, other} {
			if err := b.Del(n); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		got := make(chan string, 6)
		for i := range 6 {
			go func() {
				taken := false
				process, err := nl.Open("host", path)
				if err == nil {
					_, taken, err = []nl.Branch{one, other}[i%2].Claim(process)
					process.Close()
				}
				got <- fmt.Sprint(i%2, taken, err)
			}()
		}
		var all []string
		for range 6 {
			all = append(all, <-got)
		}
		slices.Sort(all)
		text := strings.Join(all, " ")
		ones := "0 false <nil> 0 false <nil> 0 false <nil> 1 true <nil> 1 true <nil> 1 true <nil>"
		others := "0 true <nil> 0 true <nil> 0 true <nil> 1 false <nil> 1 false <nil> 1 false <nil>"
		if text != ones && text != others {
			t.Fatalf("both, or neither, have got the chain: %s", text)
		}
	}
}

// TestBranchPut: another program has added rules to a branch, and has emptied the map. Put restores both. Packets of
// two groups go to their own branches.
func TestBranchPut(t *testing.T) {
	nltest.Need(t, "nftables")
	n, _ := nltest.NS(t, "host")
	one, other := claims()
	other.Chain = "mark_2"
	if err := (nl.Wiring{{NS: n, Object: one.Table}}).Add(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(one.Add(n), other.Add(n)); err != nil {
		t.Fatal(err)
	}
	before := ruleset(t, n)
	for _, change := range []string{"flush map inet claimed branches", "insert rule inet claimed mark_1 drop",
		"flush chain inet claimed mark_1", "flush map inet claimed arrivals",
		"insert rule inet claimed mark_1_arrived drop", "flush chain inet claimed mark_1_arrived"} {
		if err := n.Do(func() error { return exec.Command("sh", "-c", "nft "+change).Run() }); err != nil {
			t.Fatal(err)
		}
		if one.Check(n) == nil {
			t.Errorf("%s: Check finds nothing", change)
		}
		if err := errors.Join(one.Put(n), other.Put(n), one.Check(n), other.Check(n)); err != nil {
			t.Errorf("%s: %v", change, err)
		}
		if after := ruleset(t, n); after != before {
			t.Errorf("%s:\n%s\nwant\n%s", change, after, before)
		}
	}
	other.Arrived = nil // Del works without this field
	if err := other.Del(n); err != nil {
		t.Error(err)
	}
	if err := one.Check(n); err != nil {
		t.Errorf("after Del of the other: %v", err)
	}
	if after := ruleset(t, n); strings.Contains(after, "mark_2") {
		t.Errorf("after Del there is\n%s", after)
	}
}

// TestBranchStale: the map of arrivals has elements of earlier branches, which lead from links to chains. Claim
// nevertheless gets the chain, and Del leaves nothing.
func TestBranchStale(t *testing.T) {
	nltest.Need(t, "nftables")
	for name, stale := range map[string]string{
		"the link leads elsewhere":          "1 : goto mark_9_arrived",
		"another link leads to the chain":   "7 : goto mark_1_arrived",
		"each link leads to the chain":      "7 : goto mark_1_arrived, 1 : goto mark_1_arrived",
		"each of them leads to the other's": "7 : goto mark_1_arrived, 1 : goto mark_9_arrived",
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := nltest.NS(t, "host")
			one, _ := claims()
			if err := (nl.Wiring{{NS: n, Object: one.Table}}).Add(); err != nil {
				t.Fatal(err)
			}
			empty := ruleset(t, n)
			lead := "nft 'add chain inet claimed mark_1_arrived; add chain inet claimed mark_9_arrived; " +
				"add element inet claimed arrivals { " + stale + " }'"
			lose := func(command string) {
				t.Helper()
				if err := n.Do(func() error { return exec.Command("sh", "-c", command).Run() }); err != nil {
					t.Fatal(err)
				}
			}
			lose(lead)
			if _, taken, err := one.Claim(n); taken || err != nil {
				t.Fatalf("Claim: %v, %v", taken, err)
			}
			if err := one.Check(n); err != nil {
				t.Error(err)
			}
			lose("nft 'flush map inet claimed arrivals'; " + lead)
			if err := one.Del(n); err != nil {
				t.Error(err)
			}
			lose("nft delete chain inet claimed mark_9_arrived")
			if after := ruleset(t, n); after != empty {
				t.Errorf("after Del there is\n%s\nwant\n%s", after, empty)
			}
		})
	}
}

// ruleset returns the output lines of nft list ruleset in sorted order, because the kernel chooses the order in a map.
func ruleset(t *testing.T, n *nl.NS) string {
	t.Helper()
	var out []byte
	err := n.Do(func() (err error) { out, err = exec.Command("nft", "list", "ruleset").Output(); return err })
	if err != nil {
		t.Fatal(err)
	}
	words := strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' || r == ',' })
	for i := range words {
		words[i] = strings.TrimSpace(strings.NewReplacer("elements = {", "", "}", "").Replace(words[i]))
	}
	slices.Sort(words)
	return strings.Join(words, "\n")
}

// TestNeighbours: the list has the permanent neighbours of each link, and none that the kernel has learned.
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

// TestVacantRouted: a routed pair, or a route to a routed pod, belongs to a pod, so shared objects stay. Objects that
// serve the pods of an ENI do not count as a pod, and RemoveShared deletes them.
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
	one.Table.Name = nl.OwnTable + "._enis"
	routed := nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod, Group: nl.RoutedGroup(7)}
	add(nl.RoutedAddr("eni"), nl.Table{Family: "arp", Name: nl.OwnTable + "._ask.eni", Chains: asking().Chains},
		one.Table,
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
