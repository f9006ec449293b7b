// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package judge

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// HearTAP runs a command that prints results in the Test Anything Protocol, as bats does. HearTAP makes a subtest for
// each test that ran, except those that s.Not excludes.
func (s Suite) HearTAP(t *testing.T, c *exec.Cmd) {
	t.Helper()
	var out bytes.Buffer
	c.Stdout, c.Stderr = io.MultiWriter(t.Output(), &out), t.Output()
	failed := c.Run() // not an error yet, because perhaps only excluded tests have failed
	all, err := readTAP(&out)
	if err != nil {
		t.Fatalf("%v: %v", err, failed)
	}
	for i, r := range all {
		if s.isExcluded(r.name) {
			all[i].state = "skipped"
		}
	}
	s.report(t, all, nil)
}

func (s Suite) isExcluded(name string) bool {
	for part := range s.Not {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

var tapResult = regexp.MustCompile(`^(not )?ok [0-9]+ (.*?)( # skip.*)?$`)

// readTAP returns all results. The comment lines after a result become the result's message. If the number of results
// is not the number of planned tests, readTAP returns an error.
func readTAP(from io.Reader) (all []result, err error) {
	planned := 0
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		found := tapResult.FindStringSubmatch(line)
		switch {
		case found == nil && strings.HasPrefix(line, "#") && len(all) > 0:
			all[len(all)-1].message += line + "\n"
		case found == nil && planned == 0:
			fmt.Sscanf(line, "1..%d", &planned) // ignore an error, because other output may come before the plan
		case found == nil:
		case found[3] != "":
			all = append(all, result{found[2], "skipped", found[3]})
		case found[1] != "":
			all = append(all, result{found[2], "failed", "\n"})
		default:
			all = append(all, result{found[2], "passed", ""})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(all) != planned || planned == 0 {
		return nil, fmt.Errorf("%d tests ran, and %d were planned", len(all), planned)
	}
	return all, nil
}
