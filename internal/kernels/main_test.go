// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"regexp"
	"strings"
	"testing"
)

const before = `# Kernels

| ` + "`VM_KERNEL`" + ` | nodes | Linux | tried | whole chain | nl |
|---|---|---|---|---:|---:|
| ` + "`6.1`" + ` | AL2023 | 6.1.0 | 2026-01-01 | 7, 8 s | 9, 10 s |
| ` + "`6.12`" + ` | EKS 1.33 | – | – | – | – |

Text.
`

// events returns the events of the tests on a kernel. One of the tests has failed. The argument more is the text of
// further events.
func events(more string) string {
	const p = `"Package":"` + module
	return `make: here
{"Action":"pass",` + p + `/nl","Test":"TestA"}
{"Action":"output",` + p + `/nl","Output":"exec: trying once more\n"}
{"Action":"run",` + p + `/nl","Test":"TestA"}
{"Action":"output",` + p + `/nl","Test":"TestA","Output":"what A says\n"}
{"Action":"pass",` + p + `/nl","Test":"TestA/part","Elapsed":1}
{"Action":"pass",` + p + `/nl","Test":"TestA","Elapsed":1}
{"Action":"skip",` + p + `/nl","Test":"TestB","Elapsed":1}
{"Action":"pass",` + p + `/nl","Elapsed":53.4}
` + strings.ReplaceAll(more, "P", p)
}

// spaces matches runs of spaces. The test replaces each run by one space.
var spaces = regexp.MustCompile(` +`)

func TestRewrite(t *testing.T) {
	for _, tt := range []struct {
		name, kernel, more, row, out string
		failures                     []string
	}{
		{name: "all pass", kernel: "6.12", more: `{"Action":"pass",P/e2e","Test":"TestC"}
{"Action":"pass",P/e2e","Elapsed":9}`,
			row: "| `6.12` | EKS 1.33 | 6.12.3 | 2026-02-03 | 1, 9 s | 1, 1 skipped, 53 s |",
			out: "pass " + module + "/e2e: 1, 9 s\n"},
		{name: "a kernel without a row", kernel: "6.18", more: `{"Action":"pass",P/e2e","Test":"TestC"}
{"Action":"pass",P/e2e","Elapsed":9}`,
			row: "| `6.18` | | 6.12.3 | 2026-02-03 | 1, 9 s | 1, 1 skipped, 53 s |", out: "exec: trying once more\n"},
		{name: "a package did not run", kernel: "6.12",
			row:      "| `6.12` | EKS 1.33 | 6.12.3 | 2026-02-03 | – | 1, 1 skipped, 53 s |",
			failures: []string{"whole chain did not run"}},
		{name: "a failure", kernel: "6.1", more: `{"Action":"output",P/e2e","Test":"TestC","Output":"what C says\n"}
{"Action":"fail",P/e2e","Test":"TestC"}
{"Action":"fail",P/e2e","Elapsed":9}`,
			row:      "| `6.1` | AL2023 | 6.12.3 | 2026-02-03 | 0, **1 failed**, 9 s | 1, 1 skipped, 53 s |",
			out:      "what C says\n",
			failures: []string{"whole chain: 0, **1 failed**"}},
		{name: "an end without a failed test", kernel: "6.1", more: `{"Action":"pass",P/e2e","Test":"TestC"}
{"Action":"fail",P/e2e","Elapsed":9}`,
			row: "| 1, **failed**, 9 s |", failures: []string{"whole chain: 1, **failed**"}},
		{name: "no test", kernel: "6.1", more: `{"Action":"pass",P/e2e","Elapsed":9}`,
			row: "| 0, **failed**, 9 s |", failures: []string{"whole chain: 0, **failed**"}},
		{name: "a package without a column", kernel: "6.12", more: `{"Action":"pass",P/e2e","Test":"TestC"}
{"Action":"pass",P/e2e","Elapsed":9}
{"Action":"pass",P/plugin/ipvlan","Test":"TestC"}
{"Action":"pass",P/plugin/ipvlan","Elapsed":8}`,
			row: "| 1, 9 s | 1, 1 skipped, 53 s | 1, 8 s |\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			results, err := readResults(strings.NewReader(events(tt.more)), &out)
			if err != nil {
				t.Fatal(err)
			}
			text, err := rewriteTable(before, []string{tt.kernel, "", "6.12.3", "2026-02-03"}, results)
			text = spaces.ReplaceAllString(text, " ")
			if !strings.Contains(text, tt.row) || !strings.HasPrefix(text, "# Kernels\n\n| `VM_KERNEL` |") ||
				!strings.HasSuffix(text, " |\n\nText.\n") {
				t.Errorf("want the row %s in\n%s", tt.row, text)
			}
			if !strings.Contains(out.String(), tt.out) || strings.Contains(out.String(), "what A says") {
				t.Errorf("want %q, and nothing of TestA, in\n%s", tt.out, &out)
			}
			if (err != nil) != (len(tt.failures) > 0) {
				t.Errorf("got %v, want %v", err, tt.failures)
			}
			for _, want := range tt.failures {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
			columns := 0
			for line := range strings.Lines(text) {
				if n := strings.Count(line, "|"); n > 0 {
					if columns > 0 && n != columns {
						t.Errorf("%s: %d columns, want %d", line, n, columns)
					}
					columns = n
				}
			}
		})
	}
}
