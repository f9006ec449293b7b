// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestRunbook checks that the programs can write each error that docs/operations.md quotes, so that an operator finds
// the words of a pod's event there. "…" in a quotation stands for a part that varies. Each part between two colons is
// an error of its own.
func TestRunbook(t *testing.T) {
	page, err := os.ReadFile("docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	source := ourSource(t)
	quoted := regexp.MustCompile(`(?m)^\*\*Pods do not start: "(.*)"\*\*$`).FindAllSubmatch(page, -1)
	if len(quoted) < 5 {
		t.Fatalf("%d errors are quoted", len(quoted))
	}
	for _, q := range quoted {
		for _, part := range regexp.MustCompile("…|: |cni-ipvlan-vpc-k8s-ipam").Split(string(q[1]), -1) {
			if part = strings.Trim(part, " :,"); part != "" && !strings.Contains(source, part) {
				t.Errorf("docs/operations.md quotes %q, and no program writes %q", q[1], part)
			}
		}
	}
}

// ourSource returns the source of everything that can make an ADD fail.
func ourSource(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"aws", "ipam", "plugin"} {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(p) != ".go" || strings.HasSuffix(p, "_test.go") || strings.Contains(p, "sim") {
				return err
			}
			b, err := os.ReadFile(p)
			all.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	all.WriteString(syscall.EADDRINUSE.Error()) // the kernel's error for ipvlan
	return all.String()
}
