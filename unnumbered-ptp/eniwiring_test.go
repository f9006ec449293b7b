// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// oneENI and otherENI are indices of the links of two ENIs that try the same mark number first.
const oneENI, otherENI = 103, 103 + mostENIs

// enis makes a namespace with two links whose indices are oneENI and otherENI.
func enis(t *testing.T) (n *nl.NS, path string) {
	t.Helper()
	nltest.Need(t, "nftables")
	n, path = nltest.NS(t, "node")
	for _, index := range []int{oneENI, otherENI} {
		shell(t, n, fmt.Sprintf("ip link add eni%d index %[1]d type veth peer name far%[1]d", index))
	}
	return n, path
}

// shell runs a command in a namespace.
func shell(t *testing.T, n *nl.NS, command string) (out string) {
	t.Helper()
	if err := n.Do(func() error {
		b, err := exec.Command("sh", "-c", command).CombinedOutput()
		if out = string(b); err != nil {
			err = fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func markOf(index int) eniMark { return eniMark{index, nl.Families, true} }

// marks adds and checks the marks of ENIs, given by the indices of their links.
func marks(t *testing.T, n *nl.NS, indices ...int) {
	t.Helper()
	for _, i := range indices {
		if err := markOf(i).Add(n); err != nil {
			t.Fatal(err)
		}
		if err := markOf(i).Check(n); err != nil {
			t.Error(err)
		}
	}
}

// has fails the test unless the ENIs have exactly the numbers in want.
func has(t *testing.T, n *nl.NS, want map[uint32]int) {
	t.Helper()
	for number := range uint32(mostENIs) {
		for _, i := range []int{oneENI, otherENI} {
			own, err := markOf(i).number(n)
			is := err == nil && own == number+1
			if wanted := want[number+1] == i; is != wanted {
				t.Errorf("the ENI with the link %d has the number %d: %v, want %v", i, number+1, is, wanted)
			}
		}
	}
	rules, err := n.Rules()
	if err != nil {
		t.Fatal(err)
	}
	leads := map[string]bool{}
	for _, r := range rules {
		if eni, is := eniOfRule(r); is {
			if leads[fmt.Sprint(r.Family, r.Mark>>markShift, eni)] = true; !n.HasLink(eni) {
				t.Errorf("a rule is left: %s", r)
			}
		}
	}
	for number, i := range want {
		for _, f := range nl.Families {
			if key := fmt.Sprint(f, number, i); !leads[key] {
				t.Errorf("no rule for IPv%d leads the number %d to the ENI with the link %d", f, number, i)
			}
		}
	}
}

// TestMarkNumbers: each ENI tries each number once, and each number fits into the mask of the mark.
func TestMarkNumbers(t *testing.T) {
	for _, index := range []int{0, 1, 2, 254, 255, 256, oneENI, otherENI, 1<<24 - 1, 1<<31 - 1} {
		all := markOf(index).numbersToTry()
		slices.Sort(all)
		for i, number := range all {
			if number != uint32(i+1) || number<<markShift&^ENIMarks != 0 {
				t.Fatalf("link %d: the numbers are %v", index, all)
			}
		}
		if len(all) != mostENIs {
			t.Errorf("link %d: there are %d numbers", index, len(all))
		}
	}
}

// TestMarkCollides: two ENIs that try the same number first get different numbers, even if their marks are added again.
func TestMarkCollides(t *testing.T) {
	n, _ := enis(t)
	if err := markOf(oneENI).Check(n); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check before Add: %v", err)
	}
	marks(t, n, oneENI, otherENI, oneENI, otherENI)
	has(t, n, map[uint32]int{104: oneENI, 105: otherENI})
}

// TestMarkAtOnce: two ENIs try the same number first. Processes that add the marks of these ENIs at the same time agree
// on the numbers.
func TestMarkAtOnce(t *testing.T) {
	n, path := enis(t)
	for range 20 {
		errs := make(chan error)
		for i := range 6 {
			go func() {
				own, err := nl.Open("node", path)
				if err == nil {
					err = errors.Join(markOf([]int{oneENI, otherENI}[i%2]).Add(own), own.Close())
				}
				errs <- err
			}()
		}
		for range 6 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		want := map[uint32]int{104: oneENI, 105: otherENI}
		if number, err := markOf(otherENI).number(n); err == nil && number == 104 {
			want = map[uint32]int{104: otherENI, 105: oneENI}
		}
		has(t, n, want)
		shell(t, n, "nft flush ruleset; ip rule flush proto 72; ip -6 rule flush proto 72")
	}
}

// TestMarkLost removes tables and rules. If tables or rules remain, each ENI gets its old number. No ENI gets a number
// whose rule leads to the table of another ENI, as long as the link of that ENI exists.
func TestMarkLost(t *testing.T) {
	const all = "inet cni_ipvlan_vpc_k8s._enis"
	const rules = "ip rule flush proto 72; ip -6 rule flush proto 72; "
	before := map[uint32]int{104: oneENI, 105: otherENI}
	for lose, want := range map[string]map[uint32]int{
		"nft delete table " + all:                         before,
		"nft flush table " + all:                          before,
		"nft flush chain " + all + " prerouting":          before,
		"nft flush chain " + all + " mark_104":            before,
		"nft flush map " + all + " branches":              before,
		"nft flush map " + all + " arrivals":              before,
		"nft flush chain " + all + " mark_104_arrived":    before,
		"nft 'add table " + all + " { flags dormant; }'":  before,
		"nft add rule " + all + " prerouting drop":        before,
		"nft insert rule " + all + " mark_105 drop":       before,
		"nft flush ruleset":                               before,
		rules:                                             before,
		"nft flush ruleset; " + rules:                     {104: otherENI, 105: oneENI},
		"nft flush ruleset; ip link del eni103":           {105: otherENI},
		rules + "ip link del eni103; nft flush ruleset; ": {104: otherENI},
	} {
		t.Run(lose, func(t *testing.T) {
			n, _ := enis(t)
			marks(t, n, oneENI, otherENI)
			shell(t, n, lose)
			if strings.Contains(lose, "link del") {
				marks(t, n, otherENI)
				if _, err := RemoveGone(n); err != nil {
					t.Error(err)
				}
			} else {
				marks(t, n, otherENI, oneENI)
			}
			has(t, n, want)
		})
	}
}

// TestMarkOwnLast: if all chains are lost, the Add of one ENI's mark restores the chains of all ENIs. It restores the
// chain of this ENI last. The handles show the order, because the kernel numbers chains when they are created.
func TestMarkOwnLast(t *testing.T) {
	for _, own := range []int{oneENI, otherENI} {
		n, _ := enis(t)
		marks(t, n, oneENI, otherENI)
		shell(t, n, "nft flush ruleset")
		marks(t, n, own)
		handles := regexp.MustCompile(`chain mark_(\d+) \{ # handle (\d+)`).FindAllStringSubmatch(
			shell(t, n, "nft -a list ruleset"), -1)
		slices.SortFunc(handles, func(a, b []string) int {
			return cmp.Or(len(a[2])-len(b[2]), strings.Compare(a[2], b[2]))
		})
		if len(handles) != 2 || handles[1][1] != fmt.Sprint(map[int]int{oneENI: 104, otherENI: 105}[own]) {
			t.Errorf("the ENI with the link %d: the chains and their handles are %q", own, handles)
		}
	}
}

// TestMarkFull: other tables use all numbers. The error says where to look, and an ENI that already has a number keeps
// it.
func TestMarkFull(t *testing.T) {
	n, _ := enis(t)
	marks(t, n, oneENI)
	var all strings.Builder
	for number := range mostENIs {
		if number+1 != 104 {
			fmt.Fprintf(&all, "add chain inet cni_ipvlan_vpc_k8s._enis mark_%d\n", number+1)
		}
	}
	shell(t, n, "nft -f - <<'END'\n"+all.String()+"END\n")
	err := markOf(otherENI).Add(n)
	const want = "all 255 marks for ENIs are in use: see 'nft list table inet cni_ipvlan_vpc_k8s._enis' and " +
		"'ip rule show pref 1018'"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	marks(t, n, oneENI)
	has(t, n, map[uint32]int{104: oneENI})
	shell(t, n, "nft delete chain inet cni_ipvlan_vpc_k8s._enis mark_103")
	marks(t, n, otherENI)
	has(t, n, map[uint32]int{104: oneENI, 103: otherENI})
}

// TestMarkCaught: a rule of another program leads some marks to its own table, as Cilium's rules do. No ENI gets one
// of these marks, as long as another mark is free. A rule that comes later does not matter.
func TestMarkCaught(t *testing.T) {
	n, _ := enis(t)
	shell(t, n, "ip rule add pref 9 fwmark 0xd00/0xf00 lookup 2004; ip rule add pref 1024 fwmark 0x80/0x80 lookup main")
	marks(t, n, oneENI)
	has(t, n, map[uint32]int{112: oneENI})
	shell(t, n, "ip rule add pref 10 fwmark 0/0x20 lookup 2005; ip rule add pref 11 fwmark 0x20/0x20 lookup 2005")
	marks(t, n, oneENI, otherENI)
	has(t, n, map[uint32]int{112: oneENI, 104: otherENI})
}

// TestMarkFreed: all marks belong to ENIs whose links are gone. A collection frees these marks.
func TestMarkFreed(t *testing.T) {
	n, _ := enis(t)
	marks(t, n, oneENI)
	var all strings.Builder
	for number := range mostENIs {
		if number+1 != 104 {
			fmt.Fprintf(&all, "add chain inet cni_ipvlan_vpc_k8s._enis mark_%d\n"+
				"add element inet cni_ipvlan_vpc_k8s._enis branches { %d : goto mark_%[1]d }\n",
				number+1, nl.RoutedGroup(1000+number)) // no link has this index
		}
	}
	shell(t, n, "nft -f - <<'END'\n"+all.String()+"END\n")
	if err := markOf(otherENI).Add(n); err == nil || !strings.Contains(err.Error(), "are in use") {
		t.Fatalf("the marks are not in use: %v", err)
	}
	if removed, err := RemoveGone(n); err != nil || len(removed) != mostENIs-1 {
		t.Errorf("removed %d objects; %v", len(removed), err)
	}
	marks(t, n, otherENI)
	has(t, n, map[uint32]int{104: oneENI, 105: otherENI})
}

// TestMarkGone: when the link of an ENI is gone, RemoveGone deletes the ENI's objects. Rules of other ENIs and of other
// programs stay.
func TestMarkGone(t *testing.T) {
	for name, lose := range map[string]string{"all": "true", "no rules": "ip rule flush proto 72",
		"another rule": "nft add rule inet cni_ipvlan_vpc_k8s._enis mark_104 counter"} {
		t.Run(name, func(t *testing.T) { testMarkGone(t, lose) })
	}
}

func testMarkGone(t *testing.T, lose string) {
	n, _ := enis(t)
	marks(t, n, oneENI, otherENI)
	for _, eni := range []string{"eni103", "eni358"} {
		if err := arpSenderTable(eni, netip.MustParseAddr("10.0.1.9")).Add(n); err != nil {
			t.Fatal(err)
		}
	}
	shell(t, n, "ip rule add pref 1018 fwmark 0xd00/0x1fe0 table 3221225575; ip rule add pref 1018 iif eni103 table 99")
	before := nltest.Dump(t, n)
	if removed, err := RemoveGone(n); err != nil || len(removed) > 0 {
		t.Errorf("both are there, and it removed %v; %v", removed, err)
	}
	if got := nltest.Dump(t, n); got != before {
		t.Errorf("both are there, and\n%s\nis now\n%s", before, got)
	}
	shell(t, n, lose+"; ip link del eni103")
	for _, some := range []bool{true, false} {
		if removed, err := RemoveGone(n); err != nil || len(removed) > 0 != some {
			t.Errorf("removed %v; %v", removed, err)
		}
	}
	marks(t, n, otherENI)
	has(t, n, map[uint32]int{105: otherENI})
	ruleset := shell(t, n, "nft list ruleset")
	for text, want := range map[string]int{"mark_104": 0, "ask.eni103": 0, "ask.eni358": 1, "goto mark_105": 2} {
		if strings.Count(ruleset, text) != want {
			t.Errorf("%s is not there %d times:\n%s", text, want, ruleset)
		}
	}
	if rules := shell(t, n, "ip rule show pref 1018"); strings.Count(rules, "\n") != 3 {
		t.Errorf("the rules are now\n%s", rules)
	}
}
