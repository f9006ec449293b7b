// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package judge has what tests share in which programs of others judge ours. The command internal/judges reads their
// output.
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

// Attr says in the output of the test that a program of others judges ours here. The subtests are its cases.
func Attr(t *testing.T, name, version, judged string) {
	t.Helper()
	t.Attr("judge", name)
	t.Attr("version", version)
	t.Attr("judged", judged)
}

// Release returns the package of a program, and the module that has it, with its version. go.sum pins it.
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

// A Suite has tests of another project. Their program is compiled unchanged.
type Suite struct {
	Focus string            // matches the names of the tests that meet our programs
	Not   map[string]string // why others do not, by a part of their names
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

// Hear runs the tests of the suite by a command, where do does something, and has a subtest for each that ran.
func (s Suite) Hear(t *testing.T, c *exec.Cmd, judged string, do func(func() error) error) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report")
	pkg, version := Release(t, c.Path)
	Attr(t, "tests of `"+pkg+"`", version, judged)
	c.Args = append(c.Args, "-ginkgo.focus="+s.Focus, "-ginkgo.json-report="+report, "-ginkgo.no-color")
	c.Stdout, c.Stderr = t.Output(), t.Output()
	failed := do(c.Run)
	var suites []struct{ SpecReports []spec }
	if text, err := os.ReadFile(report); err != nil || json.Unmarshal(text, &suites) != nil {
		t.Fatalf("no report: %v, %v", failed, err)
	}
	left, heard := map[string]int{}, 0
	for _, r := range suites[0].SpecReports {
		switch {
		case r.LeafNodeType == "It" && r.State == "skipped":
			left[s.why(t, r.name())]++
		case r.LeafNodeType == "It" || r.State == "failed":
			heard++
			t.Run(r.name(), func(t *testing.T) {
				if r.State != "passed" {
					t.Errorf("%s: %s", r.State, r.Failure.Message)
				}
			})
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(left)) {
		t.Attr("left", fmt.Sprintf("%d: %s", left[reason], reason))
	}
	if heard == 0 || failed != nil {
		t.Errorf("%d tests ran: %v", heard, failed)
	}
}

// why returns the reason for which a test does not judge us. If several parts of its name have a reason, the reason of
// the longest part counts.
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
