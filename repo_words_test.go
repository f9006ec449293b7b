// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// retired maps words that must not be used to the words that replace them. The glossary in doc.go has the words to use.
// A key may also be a phrase in lower case. Its words match in this order, also across lines.
var retired = map[string]string{
	"ailment": "finding", "ailments": "findings", "checkup": "check", "checkups": "checks", "patient": "node",
	"witness": "source", "testimony": "snapshot", "discharge": "close", "severed": "disconnected", "rejoin": "restore",
	"seat": "slot", "seats": "slots", "seated": "attached", "lesson": "discovery", "surplus": "releasable",
	"giveback": "release", "anothers": "foreign", "somebody": "an operator, another program, ...",
	"nobody": "no process, no pod, ...", "anybody": "any user, ...", "everybody": "all users, ...",
	"whoever": "a process that, ...", "lest": "otherwise",
	"allow to": "may, or allow with a noun", "allows to": "may, or allows with a noun",
	"forbid to": "forbid with a noun", "forbids to": "forbids with a noun",
	"disbelief": "validation",
	"untold":    "tagsUnknown", "anew": "again", "unasked": "not asked",
	"says whether": "reports whether", "say whether": "report whether", "tells whether": "reports whether",
	"tell whether": "report whether",
	"give back":    "release", "gives back": "releases", "given back": "released", "giving back": "releasing",
	"furniture": "installation",
	"genuine":   "checked",
	"impostor":  "invalid",
	"impostors": "invalid",
	"lessons":   "discoveries",
	"rejoined":  "repaired",
	"rejoins":   "repairs",
}

// mayRetire are the files that may have these words: this file, and texts of other authors.
var mayRetire = []string{"repo_words_test.go", "LICENSE", ".sum", "docs/bench-", "nl/bpf/src"}

// words matches the words of a text. An identifier in MixedCaps has several words: "EndOfLease" has three.
var words = regexp.MustCompile(`[A-Z]*[a-z]+|[A-Z]+`)

// TestRepoWords checks that no file uses a retired word, except built files and texts of other authors.
func TestRepoWords(t *testing.T) {
	count := 0
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", ".cache", "bin", "dist"}, file) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || mentions(file, mayRetire) {
			return nil
		}
		count++
		text, err := os.ReadFile(file)
		for _, word := range retiredIn(file+"\n"+string(text), retired) {
			t.Errorf("%s has the retired word %q: use %q", file, word, retired[word])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if count < 100 {
		t.Errorf("there are only %d files", count)
	}
}

// TestRepoRetiredIn checks how retired words are found: whole words only, in any case, and in identifiers.
func TestRepoRetiredIn(t *testing.T) {
	table := map[string]string{"impostor": "invalid", "tells whether": "reports whether"}
	for text, want := range map[string]bool{
		"An impostor answers.":            true,
		"func isImpostorOf()":             true,
		"var ErrImpostor = 1":             true,
		"IMPOSTOR":                        true,
		"Impostorism is no word":          false,
		"// it tells\n\t// whether it is": true,
		"it tells others whether it is":   false,
	} {
		if got := len(retiredIn(text, table)) > 0; got != want {
			t.Errorf("%q: found %v, want %v", text, got, want)
		}
	}
}

// retiredIn returns the words of the table that are in a text.
func retiredIn(text string, table map[string]string) (found []string) {
	plain := " " + strings.ToLower(strings.Join(words.FindAllString(text, -1), " ")) + " "
	for word := range table {
		if strings.Contains(plain, " "+word+" ") {
			found = append(found, word)
		}
	}
	return found
}

// mentions reports whether the text contains at least one of the parts.
func mentions(text string, parts []string) bool {
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// glossaryLine is a line of the glossary: the word and its meaning, with at least two spaces in between.
var glossaryLine = regexp.MustCompile(`(?m)^//\t(\S+(?: \S+)*?) {2,}(\S.*)$`)

// TestRepoGlossary checks that doc.go is short, and that its glossary has one meaning for each word.
func TestRepoGlossary(t *testing.T) {
	const most = 130
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > most {
		t.Errorf("doc.go has %d lines, want at most %d", n, most)
	}
	_, glossary, _ := strings.Cut(string(text), "// # Glossary\n")
	meanings := map[string]string{}
	for _, m := range glossaryLine.FindAllStringSubmatch(glossary, -1) {
		if meanings[m[1]] != "" {
			t.Errorf("the glossary has %q twice", m[1])
		}
		if _, gone := retired[m[1]]; gone {
			t.Errorf("the glossary has the retired word %q", m[1])
		}
		meanings[m[1]] = m[2]
	}
	for _, word := range strings.Fields("node host pool family lease reserved bound cooling free growth waiter " +
		"intent unconfirmed registry ENI slot link slave wiring collection repair") {
		if meanings[word] == "" {
			t.Errorf("the glossary in doc.go does not have %q", word)
		}
	}
}

// generated matches the line that marks a Go file as generated.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// TestRepoWidth checks that no line of hand-written Go is wider than 120 columns. A tab counts as four columns. A raw
// string may be wider, because its text is in another format.
func TestRepoWidth(t *testing.T) {
	const most = 120
	for _, p := range packages(t) {
		for _, file := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if generated.Match(text) {
				continue
			}
			raw := rawLines(text)
			for n, line := range strings.Split(string(text), "\n") {
				columns := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
				if columns > most && !raw[n+1] {
					t.Errorf("%s:%d has %d columns, want at most %d", path.Join(p.ImportPath, file), n+1, columns, most)
				}
			}
		}
	}
}

// rawLines returns the numbers of the lines that contain a part of a raw string. Short raw strings, such as struct
// tags, do not count.
func rawLines(text []byte) map[int]bool {
	const short = 60
	raw := map[int]bool{}
	file := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return raw
		}
		if tok == token.STRING && lit[0] == '`' && len(lit) > short {
			for n := range strings.Count(lit, "\n") + 1 {
				raw[file.Line(pos)+n] = true
			}
		}
	}
}
