// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// shown matches a command of the page and its output.
var shown = regexp.MustCompile(`(?m)^    \$ cni-tool (sizing .*)\n((?:    .*\n)+)`)

// TestSizingPage compares the output of the commands in docs/sizing.md with their output in the transcript.
func TestSizingPage(t *testing.T) {
	page, err := os.ReadFile("../docs/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	transcript, err := txtar.ParseFile("testdata/sizing.txtar")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range transcript.Files {
		files[f.Name] = string(f.Data)
	}
	ran := regexp.MustCompile(`(?m)cni-ipvlan-vpc-k8s-tool (sizing .*)\ncmp stdout (\w+)$`)
	want := map[string]string{}
	for _, m := range ran.FindAllStringSubmatch(string(transcript.Comment), -1) {
		want[strings.ReplaceAll(m[1], "$EXAMPLES", "conflist-examples")] = files[m[2]]
	}
	blocks := shown.FindAllStringSubmatch(string(page), -1)
	for _, m := range blocks {
		got := strings.ReplaceAll("\n"+m[2], "\n    ", "\n")[1:]
		if text, ok := want[m[1]]; !ok || trimmed(text) != trimmed(got) {
			t.Errorf("the page shows for cni-tool %s\n%s\nand the transcript\n%s", m[1], got, text)
		}
	}
	if len(blocks) != len(want) {
		t.Errorf("the page shows %d commands, and the transcript has %d", len(blocks), len(want))
	}
}

// trimmed returns a table without the spaces at the ends of its lines.
func trimmed(table string) string { return regexp.MustCompile(`(?m) +$`).ReplaceAllString(table, "") }

// TestSizingFleet compares the seconds in docs/sizing.md with the bounds in docs/fleet.md.
func TestSizingFleet(t *testing.T) {
	fleet, err := os.ReadFile("../docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(fleet), "| all at once ")
	page, err := os.ReadFile("../docs/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	for row, config := range map[string]string{"defaults": "10-cni-ipvlan-vpc-k8s", "prefixes": "prefixes"} {
		bound := regexp.MustCompile(`(?m)^\| ` + row + ` +\| +(\d+) `).FindStringSubmatch(table)
		block := regexp.MustCompile(`sizing --config conflist-examples/` + config +
			`\.conflist [^\n]*--nodes 2000 --pods 30\n(?:    .*\n)*?    m5\.2xlarge .* (\d+) *\n`).
			FindStringSubmatch(string(page))
		if bound == nil || block == nil {
			t.Fatalf("%s: docs/fleet.md has %v, docs/sizing.md %v", row, bound, block)
		}
		if want, _ := strconv.Atoi(bound[1]); block[1] != strconv.Itoa(want) {
			t.Errorf("%s: the page says %s seconds, and the fleet %d", row, block[1], want)
		}
	}
}
