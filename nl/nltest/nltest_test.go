// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

func TestMain(m *testing.M) {
	g := nltest.Guard{M: m}
	if os.Getenv("LEAK") == "all" {
		g.Patience = time.Second // none of the leftovers goes away, so do not wait for them
	}
	os.Exit(g.Run())
}

func TestNS(t *testing.T) {
	var first, second string
	t.Run("both", func(t *testing.T) {
		var a, b *nl.NS
		a, first = nltest.NS(t, "pod")
		b, second = nltest.NS(t, "pod")
		if a.Name != "pod" || b.Name != "pod" || first == second {
			t.Errorf("%s at %s and %s at %s", a.Name, first, b.Name, second)
		}
		lo, err := a.LinkByName("lo")
		if err != nil || !lo.Up {
			t.Errorf("lo is %+v, %v", lo, err)
		}
		if err := (nl.Wiring{{NS: a, Object: nl.Veth{Name: "near", Peer: "far", PeerNS: b}}}).Add(); err != nil {
			t.Error(err)
		}
		nltest.Remove(t, second)
		if _, err := nl.Open("pod", second); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open what was removed: %v", err)
		}
	})
	for _, path := range []string{first, second} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s after the test: %v", path, err)
		}
	}
}

func TestDump(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	node, _ := nltest.NS(t, "node")
	pod, _ := nltest.NS(t, "pod")
	before := nltest.Dump(t, node, pod)
	w := nl.Wiring{
		{NS: node, Object: nl.Veth{Name: "ens6", Peer: "veth1", PeerNS: pod, Alias: "net id eth0"}},
		{NS: node, Object: nl.IPVlan{Name: "eth0", Master: "ens6", NS: pod}},
		{NS: node, Object: nl.Addr{Prefix: netip.MustParsePrefix("10.0.0.9/24"), Dev: "ens6"}},
		{NS: node, Object: nl.Addr{Prefix: netip.MustParsePrefix("10.0.0.4/24"), Dev: "ens6"}},
		{NS: pod, Object: nl.Addr{Prefix: netip.MustParsePrefix("fd00::9/64"), Dev: "eth0", NoDAD: true}},
		{NS: node, Object: nl.Rule{Pref: 1024, IIF: "ens6", Table: 263, Protocol: nl.RouteProtocol}},
		{NS: node, Object: nl.Table{Family: "inet", Name: "ours", Chains: []nl.Chain{
			{Name: "forward", Type: "filter", Hook: "forward", Rules: []nl.NFRule{{nl.Accept()}}},
		}}},
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	golden(t, "dump", nltest.Dump(t, node, pod))
	if err := w.Del(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, nltest.Dump(t, node, pod)); d != "" {
		t.Errorf("after Del (-want +got):\n%s", d)
	}
}

// golden compares got with a file of testdata. With UPDATE=1, it writes the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}
