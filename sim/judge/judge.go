// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package judge is for tests in which programs of other projects check our programs. We call the other programs judges.
// The command internal/judges reads the output of these tests.
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

// Attr writes into the output of a test which judge the test runs: the judge's name and version, and what the judge
// checks. The subtests are the cases of the judge.
func Attr(t *testing.T, name, version, judged string) {
	t.Helper()
	t.Attr("judge", name)
	t.Attr("version", version)
	t.Attr("judged", judged)
}

// Release returns the package of a program, and the name and version of the package's module. go.sum pins the version.
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

// A Suite has the tests of another project, compiled unchanged.
type Suite struct {
	Focus string            // matches the names of the tests that use our programs
	Not   map[string]string // the reasons why other tests do not judge our programs, by a part of their names
	Tries int               // attempts of each test; 0 and 1 are one attempt
}

// A spec is a test in the report of Ginkgo.
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

// Hear runs the program of the suite, and makes a subtest for each of its tests that ran. c is the command without the
// flags of the suite. The function do runs the command in the right place, such as a namespace.
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

// A result is the outcome of a test. The state is passed, skipped, or another word for a failure.
type result struct{ name, state, message string }

// report runs a subtest for each test that ran, and counts the skipped tests by reason.
func (s Suite) report(t *testing.T, all []result, failed error) {
	t.Helper()
	left, heard := map[string]int{}, 0
	for _, r := range all {
		if r.state == "skipped" {
			left[s.why(t, r.name)]++
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

// why returns the reason why a test of the suite does not judge our programs. If several parts of its name have a
// reason, the reason of the longest part counts.
func (s Suite) why(t *testing.T, name string) string {
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
