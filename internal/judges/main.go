// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command judges writes the table of the programs of others that judge ours. judges reads what go test -json prints. A
// test with such a program says so by attributes (testing.T.Attr): judge, version, judged, and left, of which there may
// be several. Its subtests are the cases. The command prints each failure, and fails if there is one.
//
//	go test -json ./e2e -run TestJudge | judges -table docs/judges.md
//
// Rows of judges that did not run stay.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
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
	tests, failures := read(os.Stdin, os.Stdout)
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rows, after := table.Cut(string(text))
	if rows == nil {
		return fmt.Errorf("%s has no table", page)
	}
	heard := rowsOf(tests)
	if len(heard) == 0 {
		failures = errors.Join(failures, errors.New("no judge was heard"))
	}
	return errors.Join(failures, os.WriteFile(page, []byte(before+merge(rows, heard).String()+after), 0o644))
}

// An event is a line of go test -json.
type event struct {
	Action, Package, Test, Output, Key, Value string
}

// A test is one that ran, with its attributes.
type test struct {
	action string
	attrs  map[string][]string
	said   []string
}

// read returns the tests by their package and name, and an error if one failed, or a package.
func read(events io.Reader, out io.Writer) (map[[2]string]*test, error) {
	tests, failures := map[[2]string]*test{}, []error{}
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadString('\n')
		if line == "" && err != nil {
			return tests, errors.Join(failures...)
		}
		var e event
		if json.Unmarshal([]byte(line), &e) != nil || e.Package == "" {
			fmt.Fprint(out, line) // of make, or of a build
			continue
		}
		key := [2]string{e.Package, e.Test}
		if tests[key] == nil {
			tests[key] = &test{attrs: map[string][]string{}}
		}
		t := tests[key]
		switch e.Action {
		case "attr":
			t.attrs[e.Key] = append(t.attrs[e.Key], e.Value)
		case "output":
			t.said = append(t.said, e.Output)
			if strings.HasPrefix(e.Output, "exec: trying once more") { // the guest has died
				maps.DeleteFunc(tests, func(k [2]string, _ *test) bool { return k[0] == e.Package })
			}
		case "fail":
			fmt.Fprint(out, strings.Join(t.said, ""))
			failures = append(failures, fmt.Errorf("%s failed", strings.TrimSpace(e.Package+" "+e.Test)))
			t.action = e.Action
		case "pass", "skip":
			t.action = e.Action
		}
	}
}

// The columns. The first and the third are the key of a row.
const (
	columnJudge = iota
	columnVersion
	columnJudged
	columns = 6
)

// rowsOf returns a row for each judge that was heard, sorted.
func rowsOf(tests map[[2]string]*test) (rows table.Table) {
	for key, t := range tests {
		if t.attrs["judge"] == nil {
			continue
		}
		count := map[string]int{}
		for _, c := range cases(tests, key) {
			count[c.action]++
		}
		n := count["pass"] + count["fail"] + count["skip"] + count[""]
		passed := fmt.Sprint(count["pass"])
		if count["pass"] < n {
			passed = "**" + passed + "**"
		}
		rows = append(rows, []string{text(t, "judge"), text(t, "version"), text(t, "judged"), fmt.Sprint(n), passed,
			cmp.Or(text(t, "left"), "–")})
	}
	slices.SortFunc(rows, slices.Compare)
	return rows
}

func text(t *test, attr string) string { return strings.Join(t.attrs[attr], "; ") }

// cases are the subtests of a test that have no subtests; or the test, if it has none.
func cases(tests map[[2]string]*test, of [2]string) (leaves []*test) {
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

// merge replaces the rows of the judges that were heard, and keeps the others.
func merge(rows, heard table.Table) table.Table {
	for _, h := range heard {
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
