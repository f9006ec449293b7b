// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package judge helps tests in which a program of another project (the judge) checks our programs. The command
// internal/judges reads the output of the tests.
package judge

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Attr adds attributes to the test: the judge's name, the judge's version, and what the judge checks. Each subtest is a
// case that the judge checks.
func Attr(t *testing.T, name, version, judged string) {
	t.Helper()
	t.Attr("judge", name)
	t.Attr("version", version)
	t.Attr("judged", judged)
}

// Release returns the package from which a program was built, and its module's version.
func Release(t *testing.T, program string) (pkg, version string) {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatalf("%v: make test builds it", err)
	}
	for _, m := range append(info.Deps, &info.Main) {
		if strings.HasPrefix(info.Path, m.Path+"/") && m.Version != "(devel)" {
			version = strings.TrimPrefix(m.Path, "github.com/") + " " + m.Version
			return strings.TrimSuffix(strings.TrimPrefix(info.Path, m.Path+"/"), ".test"), version
		}
	}
	t.Fatalf("%s: no module has %s", program, info.Path)
	return "", ""
}

// A Suite describes a test suite of another project. The suite is compiled unchanged, and checks our programs.
type Suite struct {
	Focus string            // a regular expression that matches the names of the tests that use our programs
	Not   map[string]string // key: a part of test names; value: why the tests with this part do not check our programs
	Tries int               // the maximum number of attempts for each test; 0 means 1
}

// A spec is a test in Ginkgo's report.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
}

// Hear runs the program of the suite, and makes a subtest for each test that ran. The command c must execute this
// program. Hear adds flags of Ginkgo to c. Hear passes c.Run to the function "do", which must call c.Run, for example
// in a namespace.
func (s Suite) Hear(t *testing.T, c *exec.Cmd, judged string, do func(func() error) error) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report")
	pkg, version := Release(t, c.Path)
	Attr(t, "tests of `"+pkg+"`", version, judged)
	c.Args = append(c.Args, "-ginkgo.focus="+s.Focus, "-ginkgo.json-report="+report, "-ginkgo.no-color",
		fmt.Sprint("-ginkgo.flake-attempts=", s.Tries))
	c.Stdout, c.Stderr = t.Output(), t.Output()
	failed := do(c.Run)
	var suites []struct{ SpecReports []spec }
	if text, err := os.ReadFile(report); err != nil || json.Unmarshal(text, &suites) != nil {
		t.Fatalf("no report: %v, %v", failed, err)
	}
	var all []result
	for _, r := range suites[0].SpecReports {
		if r.LeafNodeType == "It" || r.State == "failed" {
			all = append(all, result{r.name(), r.State, r.Failure.Message})
		}
	}
	s.report(t, all, failed)
}

// A result is the outcome of one test of the suite. The states "passed" and "skipped" are no failures. All other states
// are failures.
type result struct{ name, state, message string }

func (s Suite) report(t *testing.T, all []result, failed error) {
	t.Helper()
	left, heard := map[string]int{}, 0
	for _, r := range all {
		if r.state == "skipped" {
			left[s.exclusionReason(t, r.name)]++
			continue
		}
		heard++
		t.Run(r.name, func(t *testing.T) {
			if r.state != "passed" {
				t.Errorf("%s: %s", r.state, r.message)
			}
		})
	}
	for _, reason := range slices.Sorted(maps.Keys(left)) {
		t.Attr("left", fmt.Sprintf("%d: %s", left[reason], reason))
	}
	if heard == 0 || failed != nil {
		t.Errorf("%d tests ran: %v", heard, failed)
	}
}

// exclusionReason returns the reason in s.Not why a test of the suite does not check our programs. If the test's name
// contains several keys, the longest key decides.
func (s Suite) exclusionReason(t *testing.T, name string) string {
	t.Helper()
	var found []string
	for part := range s.Not {
		if strings.Contains(name, part) {
			found = append(found, part)
		}
	}
	if len(found) == 0 {
		t.Errorf("%q did not run, and no reason is known", name)
		return ""
	}
	return s.Not[slices.MaxFunc(found, func(a, b string) int { return len(a) - len(b) })]
}
