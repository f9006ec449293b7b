// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestManyPrefixes: a set of thousands of prefixes takes several messages, and more than a socket's buffer.
func TestManyPrefixes(t *testing.T) {
	n, _ := nltest.NS(t, "host")
	nltest.Need(t, "nftables")
	const many = 5000
	var four, six []netip.Prefix
	for i := range many {
		four = append(four, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 25))
		six = append(six, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 2: byte(i >> 8), 3: byte(i)}), 48))
	}
	table := nl.Table{Family: "inet", Name: "many",
		Chains: []nl.Chain{{Name: "forward", Type: "filter", Hook: "forward", Rules: []nl.NFRule{
			{nl.SAddr(four...), nl.Accept()}, {nl.NotDAddr(six...), nl.Drop()},
		}}}}
	w := nl.Wiring{{n, table}}
	for range 2 {
		if err := w.Add(); err != nil {
			t.Fatal(err)
		}
		if err := w.Check(); err != nil {
			t.Fatal(err)
		}
	}
	var found []map[string]bool
	if err := n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		sets, err := c.GetSets(&nftables.Table{Family: nftables.TableFamilyINet, Name: "many"})
		if err != nil {
			return err
		}
		for _, s := range sets {
			all, err := c.GetSetElements(s)
			if err != nil {
				return err
			}
			elements := map[string]bool{}
			for _, e := range all {
				elements[fmt.Sprint(e.Key, e.IntervalEnd)] = true
			}
			found = append(found, elements)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := make([]map[string]bool, 2)
	for i, prefixes := range [][]netip.Prefix{four, six} {
		want[i] = map[string]bool{}
		for _, p := range prefixes {
			beyond := p.Addr().AsSlice()
			if i == 0 {
				beyond[3] = 128
			} else {
				beyond[5] = 1
			}
			want[i][fmt.Sprint(p.Addr().AsSlice(), false)] = true
			want[i][fmt.Sprint(beyond, true)] = true
		}
	}
	if d := cmp.Diff(want, found); d != "" {
		t.Errorf("the sets have %d elements: -want +got\n%.2000s", len(found), d)
	}
	if err := w.Del(); err != nil {
		t.Fatal(err)
	}
}

// TestRefused: the kernel refuses a table. Nothing of the table remains, and Add returns the first of many errors.
func TestRefused(t *testing.T) {
	n, _ := nltest.NS(t, "host")
	nltest.Need(t, "nftables")
	rules := make([]nl.NFRule, 3000)
	for i := range rules {
		rules[i] = nl.NFRule{nl.Accept()}
	}
	for _, c := range []struct {
		name  string
		table nl.Table
		want  error
	}{
		{"a chain's type is unknown, and thousands of messages fail",
			nl.Table{Family: "inet", Name: "refused", Chains: []nl.Chain{
				{Name: "forward", Type: "nonsense", Hook: "forward", Rules: rules}}}, nl.ErrNoModule},
		{"a chain cannot be of its type", nl.Table{Family: "inet", Name: "refused", Chains: []nl.Chain{
			// the rules fail, too, with ENOENT
			{Name: "forward", Type: "nat", Hook: "forward", Rules: rules}}}, syscall.EOPNOTSUPP},
		{"only one message fails", nl.Table{Family: "ip", Name: "refused", Chains: []nl.Chain{
			{Name: "forward", Type: "filter", Hook: "forward", Rules: append(rules[:10:10],
				nl.NFRule{nl.Masquerade()})}}}, nl.ErrNoModule},
		{"a name is too long", nl.Table{Family: "ip", Name: fmt.Sprintf("%0300d", 0), Chains: []nl.Chain{
			{Name: "forward", Type: "filter", Hook: "forward", Rules: rules}}}, syscall.ERANGE},
	} {
		err := c.table.Add(n)
		if !errors.Is(err, c.want) || errors.Is(err, nl.ErrUnanswered) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if tables, err := n.Tables(); err != nil || len(tables) != 0 {
			t.Errorf("%s: left: %v, %v", c.name, tables, err)
		}
		if err := (nl.Table{Family: "ip", Name: "refused"}).Del(n); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: deleted: %v", c.name, err)
		}
		if err := vocabulary().Add(n); err != nil {
			t.Errorf("%s: afterwards: %v", c.name, err)
		}
		if err := vocabulary().Del(n); err != nil {
			t.Errorf("%s: afterwards: %v", c.name, err)
		}
	}
}

// TestCounters reads the counters of those rules that have one.
func TestCounters(t *testing.T) {
	n, _ := nltest.NS(t, "host")
	nltest.Need(t, "nftables")
	table := nl.Table{Family: "inet", Name: "counts", Chains: []nl.Chain{
		{Name: "output", Type: "filter", Hook: "output", Rules: []nl.NFRule{
			{nl.OIFName("lo"), nl.Count()}, {nl.IIFName("eth0"), nl.Count(), nl.Accept()},
			{nl.L4Proto("tcp"), nl.Drop()},
			{nl.L4Proto("udp"), nl.Count(), nl.Drop()},
		}},
		{Name: "input", Type: "filter", Hook: "input", Rules: []nl.NFRule{{nl.IIFName("lo"), nl.Count(), nl.Drop()}}},
		{Name: "postrouting", Type: "nat", Hook: "postrouting",
			Rules: []nl.NFRule{{nl.OIFName("eth0"), nl.Count(), nl.SNAT(netip.MustParseAddr("10.0.9.10"))}}},
	}}
	if _, err := table.Counters(n); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no table: %v", err)
	}
	if err := table.Add(n); err != nil {
		t.Fatal(err)
	}
	other := table
	other.Family, other.Name, other.Chains = "ip", "others", table.Chains[:1]
	if err := other.Add(n); err != nil {
		t.Fatal(err)
	}
	nltest.Shell(t, n, "ip link set lo up; ping -c 3 -i 0.002 -W 0.1 127.0.0.1 || :")
	got, err := table.Counters(n)
	if err != nil {
		t.Fatal(err)
	}
	want := []nl.Counted{
		{Chain: "output", Packets: 3}, {Chain: "output", IIF: true}, {Chain: "output", Drops: true},
		{Chain: "input", IIF: true, Drops: true, Packets: 3}, {Chain: "postrouting"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}
