// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestSeal: a table of an earlier release has no seal. Add gives it one, and keeps its rules. If a table has the same
// number of rules, but other rules, it has another seal, and Add replaces the table.
func TestSeal(t *testing.T) {
	n, _ := nltest.NS(t, "host")
	nltest.Need(t, "nftables")
	nft := func(args ...string) (out string) {
		t.Helper()
		if err := n.Do(func() error {
			b, err := exec.Command("nft", args...).CombinedOutput()
			out = string(b)
			return err
		}); err != nil {
			t.Fatalf("nft %q: %v\n%s", args, err, out)
		}
		return out
	}
	sealed := regexp.MustCompile(`chain (rules_[0-9a-f]{16}) \{[^\n]*\n\t\}\n\n?`)
	seals := func(want int) [][]string {
		t.Helper()
		found := sealed.FindAllStringSubmatch(nft("list", "ruleset"), -1)
		if len(found) != want {
			t.Fatalf("the table has the seals %q", found)
		}
		return found
	}
	seal := func() string {
		t.Helper()
		return seals(1)[0][1]
	}
	handles := func() []string { return strings.Fields(sealed.ReplaceAllString(nft("-a", "list", "ruleset"), "")) }
	add := func(table nl.Table) {
		t.Helper()
		if err := (nl.Wiring{{n, table}}).Add(); err != nil {
			t.Fatal(err)
		}
		if err := table.Check(n); err != nil {
			t.Error(err)
		}
	}

	table := vocabulary()
	add(table)
	first := seal()
	before := handles()
	nft("delete", "chain", "inet", "words", first)
	add(table)
	if seal() != first {
		t.Errorf("the seal is now %s, and was %s", seal(), first)
	}
	if d := cmp.Diff(before, handles()); d != "" {
		t.Errorf("-before the table lost its seal +after\n%s", d)
	}

	other := vocabulary()
	last := &other.Chains[len(other.Chains)-1]
	last.Rules = slices.Clone(last.Rules)
	last.Rules[2] = nl.NFRule{nl.OIFName("eth1"), nl.Masquerade()}
	add(other)
	if seal() == first {
		t.Error("two tables have the same seal")
	}
	add(table)
	if seal() != first {
		t.Errorf("the seal is now %s, and was %s", seal(), first)
	}

	last.Varies = true
	add(other)
	seals(2)
	if table.Chains = slices.Clone(table.Chains); !other.Lasting().Sealed(n) || table.Sealed(n) {
		t.Error("the table has not the seals of its rules")
	}
	table.Chains[len(table.Chains)-1].Varies = true
	if !table.Lasting().Sealed(n) {
		t.Error("a chain that varies counts for the seal of what lasts")
	}
}
