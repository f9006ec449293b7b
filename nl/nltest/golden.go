// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Section checks that a section of a document is equal to want, and returns the text after the section. The section is
// between two HTML comments. The first comment contains the command that updates the section. If update is true,
// Section first writes want into the section.
func Section(t *testing.T, file, command, want string, update bool) (after string) {
	t.Helper()
	begin, end := "<!-- "+command+" -->\n", "<!-- end of the wiring -->\n"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(b), begin)
	got, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has not both %q and %q", file, begin, end)
	}
	if update {
		got = want
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: -want +got\n%s", file, d)
	}
	return after
}

// Golden checks that got is equal to the content of testdata/NAME.golden. If update is true, Golden first writes got
// into this file.
func Golden(t *testing.T, name, got string, update bool) {
	t.Helper()
	file := "testdata/" + name + ".golden"
	if update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s: -want +got\n%s", file, d)
	}
}
