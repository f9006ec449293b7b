// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command kernels writes the row of one kernel in the table of docs/kernels.md, from the output of go test -json. It
// prints the result of each package and the output of each failed test. It fails if a test failed, or if a package that
// has a column in the table did not run.
//
//	make -s test-kernel VM_KERNEL=6.18 GOTEST='go test -json' |
//	  kernels -table docs/kernels.md -kernel 6.18 -version 6.18.15
//
// The command keeps the other rows. One cell of the kernel's row names the nodes that have this kernel. People write
// this cell, so the command keeps it, too.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/testevents"
)

const module = "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s"

// The indexes of the first columns. The columns of the packages follow.
const (
	columnKernel = iota
	columnNodes
	columnVersion
	columnDate
	columnsFixed
)

func main() {
	page := flag.String("table", "docs/kernels.md", "`document` with the table")
	kernel := flag.String("kernel", "", "`VM_KERNEL` of the run, the first cell of its row")
	version := flag.String("version", "", "`release` of the kernel, as uname prints it")
	flag.Parse()
	if err := run(*page, *kernel, *version, time.Now().UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(page, kernel, version string, now time.Time) error {
	if kernel == "" || version == "" {
		return errors.New("want -kernel and -version")
	}
	results, err := readResults(os.Stdin, os.Stdout)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	changed, failures := rewriteTable(string(text), []string{kernel, "", version, now.Format(time.DateOnly)}, results)
	if changed == "" {
		return errors.Join(failures, fmt.Errorf("%s has no table of kernels", page))
	}
	return errors.Join(failures, os.WriteFile(page, []byte(changed), 0o644))
}

// A result has the outcomes of the tests of one package.
type result struct {
	tests   []string // the outcomes of the package's tests, without subtests
	action  string   // the outcome of the package
	seconds float64
}

// readResults returns the results of the packages. The keys are the paths of the packages in the repository.
func readResults(events io.Reader, out io.Writer) (map[string]*result, error) {
	results := map[string]*result{}
	return results, testevents.Read(events, out, func(e testevents.Event) {
		name := strings.TrimPrefix(strings.TrimPrefix(e.Package, module), "/")
		if results[name] == nil {
			results[name] = &result{}
		}
		r := results[name]
		switch e.Action {
		case testevents.Again:
			r.tests = nil
		case "pass", "fail", "skip":
			if e.Test == "" {
				r.action, r.seconds = e.Action, r.seconds+e.Elapsed
				fmt.Fprintf(out, "%s %s: %s\n", e.Action, e.Package, r.cell())
			} else if !strings.Contains(e.Test, "/") {
				r.tests = append(r.tests, e.Action)
			}
		}
	})
}

func (r *result) cell() string {
	count := map[string]int{}
	for _, action := range r.tests {
		count[action]++
	}
	cell := fmt.Sprint(count["pass"])
	if n := count["fail"]; n > 0 {
		cell += fmt.Sprintf(", **%d failed**", n)
	} else if r.failed() {
		cell += ", **failed**" // the package did not build, or ended early
	}
	if n := count["skip"]; n > 0 {
		cell += fmt.Sprintf(", %d skipped", n)
	}
	return fmt.Sprintf("%s, %.0f s", cell, r.seconds)
}

// failed returns true if the package failed, if one of its tests failed, or if no test ran.
func (r *result) failed() bool {
	return r.action != "pass" || len(r.tests) == 0 || slices.Contains(r.tests, "fail")
}

// rewriteTable returns the text with a new row for a kernel. The argument "fixed" has the first cells of the row. The
// cells of the packages follow. If the table has no column for a package, rewriteTable adds one. rewriteTable also
// returns an error about all packages that failed or did not run. If the text has no table, the returned text is empty.
func rewriteTable(text string, fixed []string, results map[string]*result) (string, error) {
	before, rows, after := table.Cut(text)
	if rows == nil {
		return "", nil
	}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		if !slices.Contains(rows[0][columnsFixed:], columnHead(name)) {
			rows[0] = append(rows[0], columnHead(name))
		}
	}
	fixed[columnKernel] = "`" + fixed[columnKernel] + "`"
	at := slices.IndexFunc(rows, func(row []string) bool { return row[columnKernel] == fixed[columnKernel] })
	if at < 0 {
		at = len(rows)
		rows = append(rows, fixed)
	}
	fixed[columnNodes] = rows[at][columnNodes]
	cells, failures := rowOf(rows[0][columnsFixed:], results)
	rows[at] = slices.Concat(fixed, cells)
	for i, row := range rows {
		rows[i] = slices.Concat(row, slices.Repeat([]string{emptyCell}, len(rows[0])-len(row)))
	}
	for i, err := range failures {
		failures[i] = fmt.Errorf("%s: %w", fixed[columnKernel], err)
	}
	return before + rows.String() + after, errors.Join(failures...)
}

// emptyCell is the cell of a package that did not run.
const emptyCell = "–"

// rowOf returns the cells of the packages, in the order of the columns' heads. It also returns an error for each
// package that failed or did not run.
func rowOf(heads []string, results map[string]*result) (cells []string, failures []error) {
	byHead := map[string]*result{}
	for name, r := range results {
		byHead[columnHead(name)] = r
	}
	for _, h := range heads {
		cell := emptyCell
		if r := byHead[h]; r == nil {
			failures = append(failures, fmt.Errorf("%s did not run", h))
		} else if cell = r.cell(); r.failed() {
			failures = append(failures, fmt.Errorf("%s: %s", h, cell))
		}
		cells = append(cells, cell)
	}
	return cells, failures
}

func columnHead(name string) string {
	if name == "e2e" {
		return "whole chain"
	}
	return path.Base(name)
}
