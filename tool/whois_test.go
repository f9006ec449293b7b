// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestWhoisDocs compares the output of whois in docs/operations.md with its output in the transcript.
func TestWhoisDocs(t *testing.T) {
	const file = "../docs/operations.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := txtar.ParseFile("testdata/whois.txtar")
	if err != nil {
		t.Fatal(err)
	}
	blanks := regexp.MustCompile(`(?m)[· ]+$`)
	for _, f := range a.Files {
		switch f.Name {
		case "history", "then", "no_pod", "header.pods":
			if want := "nodes\n" + blanks.ReplaceAllString(string(f.Data), ""); !strings.Contains(string(page), want) {
				t.Errorf("%s does not show what whois answers:\n%s", file, want)
			}
		}
	}
}
