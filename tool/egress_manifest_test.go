// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
)

var writeDocs = flag.Bool("update", false, "write the manifest in docs/egress.md")

// TestDocsEgress checks that docs/egress.md shows what the command prints for the example conflist.
func TestDocsEgress(t *testing.T) {
	const file, begin, end = "../docs/egress.md", "egress.conflist --manifest partner\n\n```yaml\n", "```\n"
	var out bytes.Buffer
	err := tool.New(&out).Run([]string{tool.Name, "egress", "--config", "../conflist-examples/egress.conflist",
		"--manifest", "partner"})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	got, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has not both %q and %q", file, begin, end)
	}
	if *writeDocs {
		got = out.String()
		if err := os.WriteFile(file, []byte(before+begin+got+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(out.String(), got); d != "" {
		t.Errorf("%s: -the command prints +the page has (go test ./tool -run TestDocsEgress -update)\n%s", file, d)
	}
}
