// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command judges writes the table of the judges in docs/judges.md, from the output of go test -json. A judge is a
// program from another project. The program tests the CNI plugins of this repository. A Go test that runs a judge has
// the attributes "judge", "version" and "judged" (testing.T.Attr). Each subtest runs one case of the judge. An
// attribute "left" is a reason why the Go test leaves out cases. The command prints each failed test. If a test failed,
// the command fails.
//
//	go test -json ./e2e -run TestJudge | judges -table docs/judges.md
//
// The command keeps the rows of judges that did not run.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/testevents"
)

func main() {
	page := flag.String("table", "docs/judges.md", "`document` with the table")
	flag.Parse()
	if err := run(*page); err != nil {
		fmt.Fprintln(os.Stderr, "judges:", err)
		os.Exit(1)
	}
}

func run(page string) error {
	tests, failed := readTests(os.Stdin, os.Stdout)
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rows, after := table.Cut(string(text))
	if rows == nil {
		return fmt.Errorf("%s has no table", page)
	}
	newRows := rowsOf(tests)
	if len(newRows) == 0 {
		failed = errors.Join(failed, errors.New("no test names its judge"))
	}
	return errors.Join(failed, os.WriteFile(page, []byte(before+mergeRows(rows, newRows).String()+after), 0o644))
}

// A test has the outcome and the attributes of a Go test.
type test struct {
	action string
	attrs  map[string][]string
}

// readTests returns the tests by package and name, and an error if a test or a package failed.
func readTests(events io.Reader, out io.Writer) (map[[2]string]*test, error) {
	tests := map[[2]string]*test{}
	err := testevents.Read(events, out, func(e testevents.Event) {
		key := [2]string{e.Package, e.Test}
		if tests[key] == nil {
			tests[key] = &test{attrs: map[string][]string{}}
		}
		switch t := tests[key]; e.Action {
		case "attr":
			t.attrs[e.Key] = append(t.attrs[e.Key], e.Value)
		case "pass", "fail", "skip":
			t.action = e.Action
		case testevents.Again:
			maps.DeleteFunc(tests, func(k [2]string, _ *test) bool { return k[0] == e.Package })
		}
	})
	return tests, errors.Join(err, failureError(tests))
}

// failureError returns an error that names each test and each package that failed. If none failed, failureError returns
// nil.
func failureError(tests map[[2]string]*test) error {
	var failed []string
	for key, t := range tests {
		if t.action == "fail" {
			failed = append(failed, strings.TrimSpace(key[0]+" "+key[1])+" failed")
		}
	}
	if failed == nil {
		return nil
	}
	slices.Sort(failed)
	return errors.New(strings.Join(failed, "\n"))
}

// The indexes of the table's columns. The cells in columnJudge and columnJudged together identify a row.
const (
	columnJudge = iota
	columnVersion
	columnJudged
	columns = 6
)

// rowsOf returns a row for each test that ran a judge. The rows are sorted.
func rowsOf(tests map[[2]string]*test) (rows table.Table) {
	for key, t := range tests {
		if t.attrs["judge"] == nil {
			continue
		}
		count := map[string]int{}
		for _, c := range testCases(tests, key) {
			count[c.action]++
		}
		n := count["pass"] + count["fail"] + count["skip"] + count[""]
		passed := fmt.Sprint(count["pass"])
		if count["pass"] < n {
			passed = "**" + passed + "**"
		}
		rows = append(rows, []string{attrText(t, "judge"), attrText(t, "version"), attrText(t, "judged"),
			fmt.Sprint(n), passed, cmp.Or(attrText(t, "left"), "–")})
	}
	slices.SortFunc(rows, slices.Compare)
	return rows
}

func attrText(t *test, attr string) string { return strings.Join(t.attrs[attr], "; ") }

// testCases returns the subtests of a test, except those that have subtests themselves. If the test has no subtests,
// testCases returns the test itself.
func testCases(tests map[[2]string]*test, of [2]string) (leaves []*test) {
	for key, t := range tests {
		if key[0] == of[0] && strings.HasPrefix(key[1]+"/", of[1]+"/") && !hasParts(tests, key) {
			leaves = append(leaves, t)
		}
	}
	return leaves
}

func hasParts(tests map[[2]string]*test, of [2]string) bool {
	for key := range tests {
		if key[0] == of[0] && strings.HasPrefix(key[1], of[1]+"/") {
			return true
		}
	}
	return false
}

// mergeRows adds newRows to the table. If an old row has the same cells in columnJudge and columnJudged as a new row,
// the new row replaces the old row.
func mergeRows(rows, newRows table.Table) table.Table {
	for _, h := range newRows {
		at := slices.IndexFunc(rows, func(r []string) bool {
			return len(r) == columns && r[columnJudge] == h[columnJudge] && r[columnJudged] == h[columnJudged]
		})
		if at < 0 {
			rows = append(rows, h)
			continue
		}
		rows[at] = h
	}
	slices.SortStableFunc(rows[1:], slices.Compare)
	return rows
}
