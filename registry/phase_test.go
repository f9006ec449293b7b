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

// steps are what happens to ENIs, by the names of the table in docs/design.md.
var steps = map[string]func(*ENI){
	"Drain":     (*ENI).Drain,
	"Undrain":   (*ENI).Undrain,
	"Disown":    (*ENI).Disown,
	"Serve":     (*ENI).Serve,
	"Configure": nil, // below, with each of its arguments
	"Request":   (*ENI).Request,
	"Doubt":     func(e *ENI) { e.Doubt(NotAsked) },
	"Confirm":   (*ENI).Confirm,
	"Detach":    (*ENI).Detach,
	"Attach":    (*ENI).Attach,
	"Reattach":  (*ENI).Reattach,
	"Find":      func(e *ENI) { e.Find("eth1") },
}

// what a step does with each of its arguments.
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

// TestPhases plays all orders of the steps with an ENI of each origin. No ENI ever contradicts itself, and the steps
// between phases are those of the table in docs/design.md, no more and no less.
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

// play takes an ENI through all orders of the steps, and notes the steps between phases.
func play(t *testing.T, e ENI, got map[string]bool) {
	t.Helper()
	seen := map[string]bool{}
	for queue := []ENI{e}; len(queue) > 0; queue = queue[1:] {
		for name := range steps {
			for _, step := range variants(name) {
				before, e := queue[0], queue[0]
				if step(&e); e.Draining {
					e.Detaching = time.Unix(1790000001, 0) // as when EC2 is asked
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

// table returns the steps of the table in docs/design.md. A row stands for a step from each phase in its second column
// to each other phase in its third.
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

// TestWrong checks what contradicts itself.
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
