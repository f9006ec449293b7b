// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocs compares the section of docs/node.md about several interfaces with the wiring.
func TestDocs(t *testing.T) {
	const file = "../../docs/node.md"
	const begin, end = "<!-- go test ./plugin/ipvlan -run TestDocs -update -->\n", "<!-- end of the wiring -->\n"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(b), begin)
	got, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has not both %q and %q", file, begin, end)
	}
	want := "\n```\n" + shipped(t, false).String() + "```\n\n"
	if *update {
		got = want
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: -want +got\n%s", file, d)
	}
}
