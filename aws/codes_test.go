// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update-codes", false, "write the table of codes in docs/refusals.md")

// TestCodesPage: docs/refusals.md has the table of codes. After a change, run: go test ./aws -run TestCodesPage
// -update-codes
func TestCodesPage(t *testing.T) {
	const page, begin, end = "../docs/refusals.md", "<!-- codes -->\n", "<!-- end of codes -->\n"
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(b), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the table", page)
	}
	want := before + begin + codesTable() + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(b) {
		t.Errorf("the table in %s is not that of codes.go: go test ./aws -run TestCodesPage -update-codes", page)
	}
}

func codesTable() string {
	text := "| code | if the message has | it means | a change of an ENI | a creation | an attachment | at most | " +
		"may have been done |\n" +
		"|---|---|---|---|---|---|---|---|\n"
	for _, m := range append(slices.Clone(meanings), unknownCode) {
		codes, is, message := "any other", "–", "–"
		if len(m.codes) > 0 {
			codes = "`" + strings.Join(m.codes, "`, `") + "`"
		}
		if m.sentinel != nil {
			is = m.sentinel.Error()
		}
		if m.text != "" {
			message = "“" + m.text + "”"
		}
		text += fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s |\n", codes, message, is, m.scopes.change,
			m.scopes.create, m.scopes.attach,
			briefly(m.remembered), map[bool]string{true: "yes", false: "no"}[m.scopes.change == ScopeUnknown])
	}
	return text
}

func briefly(d time.Duration) string {
	switch {
	case d == 0:
		return "–"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}

// TestCodesWhole: each row of the table has a scope for each kind of action. If a node remembers a refusal for longer
// than passingTime, the row has a hint.
func TestCodesWhole(t *testing.T) {
	for _, m := range append(slices.Clone(meanings), unknownCode) {
		if m.scopes.change == "" || m.scopes.create == "" || m.scopes.attach == "" {
			t.Errorf("%v has no scope", m.codes)
		}
		if m.remembered > passingTime && m.hint == "" {
			t.Errorf("%v has no hint", m.codes)
		}
		for _, e := range []Error{{Code: firstOf(m.codes), Message: m.text}} {
			if got := e.meaning(); e.Code != "" && got.hint != m.hint {
				t.Errorf("%s %q means %q: an earlier row is in the way", e.Code, e.Message, got.hint)
			}
		}
	}
}

func firstOf(codes []string) string {
	if len(codes) == 0 {
		return ""
	}
	return strings.Replace(codes[0], "*", "Invalid", 1)
}
