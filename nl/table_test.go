// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// vocabulary returns a table that uses all terms.
func vocabulary() nl.Table {
	p := netip.MustParsePrefix
	return nl.Table{Family: "inet", Name: "words", Chains: []nl.Chain{
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: -150, Rules: []nl.NFRule{
			{nl.IIFName("eth0"), nl.DPort("tcp", 30000, 32767), nl.SetCTMark(0x2000)},
			{nl.IIFName("veth*"), nl.CTMark(0x2000), nl.SetMark(0x2000)},
			{nl.IIFGroup(72), nl.ToLocal(), nl.Count()},
			{nl.NotToLocal(), nl.NoRouteBack(), nl.Count(), nl.Drop()},
			{nl.NoRouteBackByMark(), nl.Accept()},
			{nl.RouteBackByMark(), nl.SetMarkBits(0, 0x2000)},
			{nl.Marked(0x2000), nl.Drop()},
			{nl.NotSAddr(p("10.0.0.0/16"), p("10.0.1.0/24"), p("10.2.0.0/16"), p("255.0.0.0/8")),
				nl.IIFName("eth0"), nl.Drop()},
			{nl.DAddr(p("fd00::/64"), p("fd00:1::/64")), nl.L4Proto("udp"), nl.Accept()},
			{nl.SAddr(p("10.0.0.1/32")), nl.Accept()},
			{nl.NotDAddr(p("fd00::1/128")), nl.Accept()},
			{nl.IIFRouted(), nl.SetMarkBits(0x1a0, 0x1fe0)},
			{nl.IIFGroup(nl.RoutedGroup(7)), nl.SetMarkBits(0x1fe0, 0x1fe0)},
		}},
		{Name: "forward", Type: "filter", Hook: "forward", Priority: 0, Policy: "drop", Rules: []nl.NFRule{
			{nl.CTState("established", "related"), nl.Accept()},
			{nl.CTStatusDNAT(), nl.OIFGroup(72), nl.Accept()},
			{nl.IIFName("egress*"), nl.ClampMSS()},
			{nl.DPort("udp", 5555, 5555), nl.Notrack()},
			{nl.CTReply(), nl.Accept()},
			{nl.L4Proto("tcp"), nl.CTOriginal(), nl.CTMark(0x2000), nl.NotOIFName("egress*"), nl.Reset()},
			{nl.NotOIFName("eth0"), nl.CTUnmarked(0x2000), nl.Drop()},
		}},
		{Name: "services", Type: "nat", Hook: "prerouting", Priority: -100, Rules: []nl.NFRule{
			{nl.DAddr(p("172.20.0.10/32")), nl.DPort("tcp", 80, 80),
				nl.DNAT(netip.MustParseAddrPort("10.0.2.20:8080"))},
			{nl.DAddr(p("fd00::10/128")), nl.DPort("udp", 53, 53), nl.DNAT(netip.MustParseAddrPort("[fd00:2::20]:53"))},
		}},
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []nl.NFRule{
			{nl.IIFRouted(), nl.OIFRouted(), nl.Accept()},
			{nl.OIFName("veth*"), nl.SNAT(netip.MustParseAddr("10.0.9.10"))},
			{nl.OIFName("veth*"), nl.SNAT(netip.MustParseAddr("fd00::10"))},
			{nl.OIFName("eth0"), nl.Masquerade()},
			{nl.L4Proto("tcp"), nl.SNATWithin(netip.MustParseAddr("10.0.9.10"), 1024, 49151)},
			{nl.L4Proto("udp"), nl.SNATWithin(netip.MustParseAddr("fd00::10"), 1024, 49151)},
			{nl.NextHop(netip.MustParseAddr("169.254.72.1")), nl.L4Proto("tcp"), nl.SNATPorts(47104, 65535)},
			{nl.NextHop(netip.MustParseAddr("fe80::72")), nl.L4Proto("udp"), nl.SNATPorts(47104, 65535)},
		}},
	}}
}

// asking returns a table of the family arp, with the terms for ARP.
func asking() nl.Table {
	return nl.Table{Family: "arp", Name: "words", Chains: []nl.Chain{
		{Name: "output", Type: "filter", Hook: "output", Rules: []nl.NFRule{
			{nl.OIFName("eth1"), nl.SetARPSender(netip.MustParseAddr("10.0.1.10"))},
		}},
		{Name: "input", Type: "filter", Hook: "input", Rules: []nl.NFRule{{nl.IIFName("eth1"), nl.Drop()}}},
	}}
}

// TestTable adds a table with each term, and repairs the table after changes by another program.
func TestTable(t *testing.T) {
	n, _ := nltest.NS(t, "host")
	nltest.Need(t, "nftables")
	w := nl.Wiring{{n, vocabulary()}}
	if err := w.Check(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check before Add: %v", err)
	}
	for range 2 {
		if err := w.Add(); err != nil {
			t.Fatal(err)
		}
		if err := w.Check(); err != nil {
			t.Fatal(err)
		}
	}
	other := vocabulary()
	other.Chains = other.Chains[2:]
	if err := (nl.Wiring{{n, other}}).Check(); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check of a table that differs: %v", err)
	}
	fewer := nl.Table{Family: other.Family, Name: other.Name, Chains: other.Chains, More: true}
	if err := fewer.Check(n); err != nil {
		t.Errorf("Check of a table that may have more chains: %v", err)
	}
	fewer.Chains = []nl.Chain{{Name: "forward"}}
	if err := fewer.Check(n); err == nil {
		t.Error("Check of a table that has more rules in a chain: no error")
	}
	if err := (nl.Wiring{{n, other}}).Add(); err != nil {
		t.Errorf("replace: %v", err)
	}
	if err := w.Check(); err == nil {
		t.Error("the table was replaced, and Check is content")
	}
	if err := w.Add(); err != nil {
		t.Errorf("repair: %v", err)
	}
	for range 2 {
		if err := w.Del(); err != nil {
			t.Fatal(err)
		}
	}
	if tables, err := n.Tables(); err != nil || len(tables) != 0 {
		t.Errorf("left: %v, %v", tables, err)
	}
}

// TestTableAsleep: a table with all its rules is wrong if it is dormant, or if a chain has another policy.
func TestTableAsleep(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil && os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("there is no nft here to change the table: install nftables")
	}
	n, _ := nltest.NS(t, "host")
	nltest.Need(t, "nftables")
	table := vocabulary()
	if err := (nl.Wiring{{n, table}}).Add(); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"add table inet words { flags dormant; }": "dormant",
		"add chain inet words forward { policy accept; }": "chain forward is type filter hook forward priority 0; " +
			"policy accept;, not type filter hook forward priority 0; policy drop;",
		"add chain inet words postrouting { policy drop; }": "chain postrouting is",
		"add chain inet words prerouting { policy drop; }":  "chain prerouting is",
	} {
		if err := n.Do(func() error { return exec.Command(nft, command).Run() }); err != nil {
			t.Fatalf("nft %s: %v", command, err)
		}
		if err := table.Check(n); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("nft %s: %v, want %q", command, err, want)
		}
		if err := (nl.Wiring{{n, table}}).Add(); err != nil {
			t.Errorf("nft %s: Add: %v", command, err)
		}
		if err := table.Check(n); err != nil {
			t.Errorf("nft %s: after Add: %v", command, err)
		}
	}
	fewer := nl.Table{Family: table.Family, Name: table.Name, Chains: table.Chains[2:], More: true}
	if err := n.Do(func() error {
		return exec.Command(nft, "add chain inet words forward { policy accept; }").Run()
	}); err != nil {
		t.Fatal(err)
	}
	if err := fewer.Check(n); err != nil {
		t.Errorf("the policy of a chain that is none of these: %v", err)
	}
}

// TestTableString compares String with what nft(8) lists.
func TestTableString(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil && os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("there is no nft here to ask: install nftables")
	}
	n, _ := nltest.NS(t, "host")
	nltest.Need(t, "nftables")
	list := func() string {
		var out []byte
		if err := n.Do(func() (err error) {
			out, err = exec.Command(nft, "-nnn", "list", "ruleset").CombinedOutput()
			return err
		}); err != nil {
			t.Fatalf("nft list ruleset: %v\n%s", err, out)
		}
		return uncomment(string(out))
	}
	w := nl.Wiring{{n, vocabulary()}, {n, asking()}}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	if err := w.Check(); err != nil {
		t.Error(err)
	}
	ours := list()
	if err := w.Del(); err != nil {
		t.Fatal(err)
	}
	if err := n.Do(func() error {
		out, err := exec.Command("sh", "-c", vocabulary().String()+"\n"+asking().String()).CombinedOutput()
		if err != nil {
			t.Logf("%s", out)
		}
		return err
	}); err != nil {
		t.Fatalf("nft: %v", err)
	}
	if d := cmp.Diff(list(), ours); d != "" {
		t.Errorf("-what nft makes of the text +what we make\n%s", d)
	}
}

// uncomment removes the fingerprints and the seal.
func uncomment(ruleset string) string {
	ruleset = regexp.MustCompile(`\tchain rules_[0-9a-f]{16} \{\n\t\}\n\n`).ReplaceAllString(ruleset, "")
	var b strings.Builder
	for line := range strings.Lines(ruleset) {
		line, _, _ = strings.Cut(strings.TrimRight(line, "\n"), " comment ")
		b.WriteString(line + "\n")
	}
	return b.String()
}
