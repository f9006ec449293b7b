// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

func TestBaseline(t *testing.T) {
	row := func(add, del, cpu string) table.Table {
		return table.Table{{"chain", "c", "ADD p50", "DEL p50", "CPU ADD+DEL"}, {reference, "1", "999", "999", "999"},
			{ours, "1", add, del, cpu}}
	}
	file := filepath.Join(t.TempDir(), "baseline")
	if err := os.WriteFile(file, []byte(row("1000", "2000", "3000").String()), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := readBaseline(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		now  table.Table
		want string
	}{
		{"better", row("1", "2", "3"), ""},
		{"10 % worse", row("1100", "2200", "3300"), ""},
		{"two worse", row("1101", "2000", "4500"), "ADD p50 of ours is 1101, and was 1000: worse by 10 % (c=1)\n" +
			"CPU ADD+DEL of ours is 4500, and was 3000: worse by 50 % (c=1)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := b.compare(tt.now); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	ten := []time.Duration{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for q, want := range map[float64]time.Duration{0: 0, 0.5: 5, 0.9: 9, 1: 10} {
		if got := quantile(ten, q); got != want {
			t.Errorf("quantile %v: got %d, want %d", q, got, want)
		}
	}
}

// TestMedian checks that one slow run does not change the median. The first collection of a node takes longer than the
// next collections.
func TestMedian(t *testing.T) {
	var runs []sample
	for _, wall := range []time.Duration{6900, 1200, 1100, 1150, 1170} {
		runs = append(runs, sample{cost: cost{wall, wall - 200}})
	}
	if got, want := median(runs), (cost{1170, 970}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestCandidates checks that libcni accepts the shipped chains, and that bench looks for exactly their plugins.
func TestCandidates(t *testing.T) {
	own, err := warmConflist("../../conflist-examples/10-cni-ipvlan-vpc-k8s.conflist", 1, false, "")
	if err != nil {
		t.Fatal(err)
	}
	chained, err := warmConflist("../../conflist-examples/three-plugins.conflist", 1, false, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range candidates(own, own, chained, "/dir") {
		l, err := libcni.NetworkConfFromBytes([]byte(c.conflist))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var types []string
		for _, p := range l.Plugins {
			types = append(types, p.Network.Type)
		}
		if c.name == ours && !cmp.Equal(types, c.needs[:1]) || c.name == threePlugins && !cmp.Equal(types, c.needs) {
			t.Errorf("the shipped chain is %v, and bench looks for %v", types, c.needs)
		}
	}
	for _, want := range []string{`"reuseIPWait": 0`, `"ipBatchSize": 0`, `"routeToVpcPeers": true`} {
		if !strings.Contains(own, want) || !strings.Contains(chained, want) {
			t.Errorf("%s is not in %s and %s", want, own, chained)
		}
	}
}

// TestBudgets: a request that costs more than its budget fails the benchmark. The error names the layout and the route
// of this request. Only the cheapest round counts, because most rounds contain other work of the kernel.
func TestBudgets(t *testing.T) {
	cost := map[string]time.Duration{bare: 1000, ours: 1015, loopless: 1003, routedVeth: 1400, byVeth: 1450,
		crowded: 1500, tracked: 1500}
	measured := func() *flows {
		fs := &flows{budgets: budgets}
		for name, d := range cost {
			for _, r := range routes {
				fs.all = append(fs.all, &flow{pair: &pair{layout: layout{name: name}}, route: r, load: loads[0],
					costs: []time.Duration{2 * d, d, 3 * d}})
			}
		}
		return fs
	}
	if err := measured().checkBudgets(); err != nil {
		t.Error(err)
	}
	cost[loopless] = 1030
	want := `layout "ours, serviceLoop none", route "pod, other node": a request costs 1.030 times as much as in the ` +
		`layout "ipvlan, bare"; the budget is 1.020 times` + "\n" +
		`layout "ours, serviceLoop none", route "pod, same node": a request costs 1.030 times as much as in the ` +
		`layout "ipvlan, bare"; the budget is 1.020 times`
	if err := measured().checkBudgets(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	cost[loopless], cost[routedVeth] = 1000, 1310
	want = `layout "ours", route "pod, other node": a request costs 0.775 times as much as in the layout ` +
		`"veth, routed"; the budget is 0.769 times`
	if err := measured().checkBudgets(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	none := measured()
	for _, f := range none.all {
		f.costs = nil
	}
	if none.checkBudgets() == nil {
		t.Error("where nothing was counted all budgets are kept")
	}
}

// TestFrugal: the published memory of an ADD is at most that of upstream's chain. A higher figure fails the benchmark.
func TestFrugal(t *testing.T) {
	b, err := os.ReadFile("../../docs/bench-memory.txt")
	if err != nil {
		t.Fatal(err)
	}
	figures := table.Parse(string(b))
	if err := checkMemory(figures); err != nil {
		t.Error(err)
	}
	for _, row := range figures {
		if row[0] == ours {
			row[3] = "1.01"
		}
	}
	const want = "peak RSS of ours is 1.01 times that of ptp + host-local, want at most 1 times"
	if err := checkMemory(figures); err == nil || err.Error() != want {
		t.Errorf("more memory: %v", err)
	}
}

// TestPublished checks that docs/speed.md has the figures of the last runs.
func TestPublished(t *testing.T) {
	page, err := os.ReadFile("../../docs/speed.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{ours: {"| **this** |", "| this |"}, byVeth: {"| this, `dataPath` `veth` |"},
		threePlugins: {"| this, as three plugins |"}, reference: {"| `ptp` + `host-local` |"},
		noopChain:          {"| `noop` |"},
		"ours, asking EC2": {"| this, if the ADD asks EC2 |"}, "ours, VERSION": {"| this, VERSION |"}}
	for file, leaves := range map[string][]int{"bench-memory.txt": {6, 7}, "bench-status.txt": {1, 3}} {
		b, err := os.ReadFile(filepath.Join("../../docs", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range table.Parse(string(b))[1:] {
			var cells []string
			for i, cell := range row[1:] {
				if !slices.Contains(leaves, i+1) {
					cells = append(cells, strings.TrimSpace(cell+" |"))
				}
			}
			want := strings.Join(cells, " ")
			shown := slices.ContainsFunc(rows[row[0]], func(name string) bool {
				return strings.Contains(string(page), name+" "+want)
			})
			if row[0] != noopChain && !shown || file == "bench-status.txt" && !shown {
				t.Errorf("docs/speed.md does not have the row of %s with %s", file, row[0]+": "+want)
			}
		}
	}
}
