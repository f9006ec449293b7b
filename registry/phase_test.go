// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// steps are the changes of ENIs, with their names in the table of docs/design.md.
var steps = map[string]func(*ENI){
	"Drain":     (*ENI).Drain,
	"Undrain":   (*ENI).Undrain,
	"Disown":    (*ENI).Disown,
	"Serve":     (*ENI).Serve,
	"Configure": nil, // see variants
	"Request":   (*ENI).Request,
	"Doubt":     func(e *ENI) { e.Doubt(NotAsked) },
	"Confirm":   (*ENI).Confirm,
	"Detach":    (*ENI).Detach,
	"Attach":    (*ENI).Attach,
	"Reattach":  (*ENI).Reattach,
	"Find":      func(e *ENI) { e.Find("eth1") },
}

// variants returns the functions of a step: Configure has one for each combination of its arguments.
func variants(name string) []func(*ENI) {
	if name != "Configure" {
		return []func(*ENI){steps[name]}
	}
	var all []func(*ENI)
	for n := range 8 {
		all = append(all, func(e *ENI) { e.Configure(n&1 > 0, n&2 > 0, n&4 > 0) })
	}
	return all
}

// TestPhases applies the steps in all orders to an ENI of each origin. No ENI may contradict itself. The changes of
// phases must be exactly those of the table in docs/design.md.
func TestPhases(t *testing.T) {
	got := map[string]bool{}
	for _, e := range []ENI{{Boot: true}, {Card: 1}, {Index: 1}, {Index: 1, Managed: true},
		{Index: 1, OnRequest: true}} {
		e.Missed = time.Unix(1790000000, 0)
		play(t, e, got)
	}
	if want := table(t); !maps.Equal(got, want) {
		t.Errorf("the steps are\n%s\nand those of docs/design.md\n%s",
			strings.Join(slices.Sorted(maps.Keys(got)), "\n"),
			strings.Join(slices.Sorted(maps.Keys(want)), "\n"))
	}
}

// play applies the steps in all orders to an ENI, and records in got the changes of its phase.
func play(t *testing.T, e ENI, got map[string]bool) {
	t.Helper()
	seen := map[string]bool{}
	for queue := []ENI{e}; len(queue) > 0; queue = queue[1:] {
		for name := range steps {
			for _, step := range variants(name) {
				before, e := queue[0], queue[0]
				if step(&e); e.Draining {
					e.Detaching = time.Unix(1790000001, 0) // as after the call to EC2
				}
				if wrong := e.Wrong(); wrong != "" {
					t.Fatalf("%s of an ENI that is %s: %s: %+v", name, before.Phase(), wrong, e)
				}
				if e.Phase() != before.Phase() {
					got[arrow(name, string(before.Phase()), string(e.Phase()))] = true
				}
				if key := fmt.Sprintf("%+v", e); !seen[key] {
					seen[key] = true
					queue = append(queue, e)
				}
			}
		}
	}
}

func arrow(step, from, to string) string { return fmt.Sprintf("%s: %s -> %s", step, from, to) }

// table returns the changes of phases in the table of docs/design.md. A row stands for a change from each phase in its
// second column to each other phase in its third column.
func table(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, row := range regexp.MustCompile(
		"(?m)^\\| `([A-Z][a-z]+)` \\| ([a-z, ]+) \\| ([a-z, ]+) \\|").FindAllStringSubmatch(
		string(text), -1) {
		for from := range strings.SplitSeq(row[2], ", ") {
			for to := range strings.SplitSeq(row[3], ", ") {
				if from != to {
					all[arrow(row[1], from, to)] = true
				}
			}
		}
	}
	return all
}

// TestWrong checks that Wrong finds each ENI that contradicts itself.
func TestWrong(t *testing.T) {
	for want, e := range map[string]ENI{
		"": {Index: 1, Managed: true, Draining: true, Detaching: time.Unix(1, 0),
			Detached: true},
		"since 1970":                  {Index: 1, Detaching: time.Unix(1, 0).UTC()},
		"at device index 0 of card 1": {Card: 1, Detached: true},
		"and it serves its pool":      {Index: 1, OnRequest: true, Serving: true},
	} {
		if got := e.Wrong(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", e, got, want)
		}
	}
}
