// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// longest is the maximum number of words of a sentence. A tired reader understands such a sentence at once, even if the
// reader's first language is not English.
const longest = 25

// quoting is a page whose tables quote the output of programs. TestRepoMessages checks the texts of programs.
const quoting = "docs/faults.md"

// TestRepoSentences checks that the sentences of all pages are short.
func TestRepoSentences(t *testing.T) {
	count := 0
	for _, file := range pages(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		count += short(t, file, prose(string(text), file != quoting), sentenceEnd)
	}
	if count < 5000 {
		t.Errorf("there are only %d sentences", count)
	}
}

// TestRepoMessages checks that the sentences in the programs' texts are short: errors, hints, findings and help. A
// semicolon may also end such a sentence.
func TestRepoMessages(t *testing.T) {
	count := 0
	for _, p := range packages(t) {
		if strings.HasPrefix(p.ImportPath, "sim") || p.ImportPath == "packaging/manual" {
			continue // leave out test code; and the manual page, because its lines are troff
		}
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, message := range messages(f) {
				count += short(t, path.Join(p.ImportPath, file), prose(message, true), statementEnd)
			}
		}
	}
	if count < 5000 {
		t.Errorf("there are only %d sentences", count)
	}
}

// short checks that the sentences of the blocks are short, and returns the number of sentences.
func short(t *testing.T, where string, blocks []string, end *regexp.Regexp) (count int) {
	t.Helper()
	for _, block := range blocks {
		for sentence := range sentences(block, end) {
			n := wordsOf(sentence)
			if n > longest {
				t.Errorf("%s has a sentence of %d words: %s", where, n, sentence)
			}
			count += min(n, 1)
		}
	}
	return count
}

// messages returns the strings of a file, and the sums with a string. In a sum, the word "it" stands for each value
// that only a run knows.
func messages(f *ast.File) (all []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		e, _ := n.(ast.Expr)
		text, is := constant(e)
		if is {
			all = append(all, text)
		}
		return !is
	})
	return all
}

// constant returns the text of a string, or of a sum with a string.
func constant(e ast.Expr) (text string, is bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, isX := constant(e.X)
		y, isY := constant(e.Y)
		return cmp.Or(x, "it") + cmp.Or(y, "it"), e.Op == token.ADD && (isX || isY)
	}
	return "", false
}

// quotedHeading matches those headings of the runbook that quote a message.
var quotedHeading = regexp.MustCompile(`(?m)^\*\*"(.*)"\*\*$`)

// TestRepoRunbook checks that the programs can write the messages that the runbook quotes. An ellipsis stands for
// values that only a run knows. After a colon, the text of another error may follow.
func TestRepoRunbook(t *testing.T) {
	var written strings.Builder
	for _, p := range packages(t) {
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, message := range messages(f) {
				written.WriteString(message + "\n")
			}
		}
	}
	page, err := os.ReadFile("docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, runbook, _ := strings.Cut(string(page), "\n### Running pods lose traffic\n") // e2e tests the part before
	quoted := quotedHeading.FindAllStringSubmatch(runbook, -1)
	if len(quoted) < 3 {
		t.Errorf("the runbook quotes only %d messages", len(quoted))
	}
	for _, m := range quoted {
		for _, part := range regexp.MustCompile(`(eni-)?…|: `).Split(m[1], -1) {
			if !strings.Contains(written.String(), part) {
				t.Errorf("the runbook quotes %q, and no program writes %q", m[1], part)
			}
		}
	}
}

// TestRepoProse checks which parts of a page count as sentences.
func TestRepoProse(t *testing.T) {
	const page = "# A *title*\nOne `of two` words. **Two.** A [link of words](to.md)\nends here.\n\n    code\n\n" +
		"- an item; the same\n  - another\n\n```\nmore code\n```\n\n| a cell | a `cell` and 1 more |\n|---|---|\n"
	var got []int
	for _, block := range prose(page, true) {
		for sentence := range sentences(block, sentenceEnd) {
			if n := wordsOf(sentence); n > 0 {
				got = append(got, n)
			}
		}
	}
	if want := []int{2, 3, 1, 6, 4, 1, 2, 5}; !slices.Equal(got, want) {
		t.Errorf("the sentences have %v words, want %v", got, want)
	}
	f, err := parser.ParseFile(token.NewFileSet(), "", "package p\n\nvar _ = f(\"a \"+b+\" c\"+`. D`, 1+2, \"e\")", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := messages(f), []string{"a it c. D", "e"}; !slices.Equal(got, want) {
		t.Errorf("the messages are %q, want %q", got, want)
	}
}

// pages returns the Markdown files of the repository.
func pages(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{".git", ".cache", "bin", "dist"}, file) {
			return fs.SkipDir
		}
		if filepath.Ext(file) == ".md" {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var (
	notProse     = regexp.MustCompile("(?ms)^ *```.*?^ *```$|<!--.*?-->")
	inlineCode   = regexp.MustCompile("``.+?``|`[^`]+`")
	link         = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	listItem     = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	sentenceEnd  = regexp.MustCompile(`[.!?][)”"*_]*\s+`)
	statementEnd = regexp.MustCompile(`[.!?;][)”"*_]*\s+`)
)

// prose returns the blocks of a page: paragraphs, headings, list items and, if cells is true, the cells of tables. It
// leaves out code blocks. Inline code counts as one word.
func prose(page string, cells bool) (blocks []string) {
	page = notProse.ReplaceAllString(page, "")
	page = link.ReplaceAllString(inlineCode.ReplaceAllString(page, "code"), "$1")
	begins := true
	for line := range strings.Lines(page) {
		switch line = strings.TrimRight(line, "\n"); {
		case begins && strings.HasPrefix(line, "    "): // a block of code
			continue
		case strings.HasPrefix(line, "|"):
			if cells {
				blocks = append(blocks, strings.Split(line, "|")...)
			}
			begins = true
			continue
		case begins || listItem.MatchString(line) || strings.HasPrefix(line, "#"):
			blocks = append(blocks, line)
		default:
			blocks[len(blocks)-1] += " " + line
		}
		begins = line == "" || strings.HasPrefix(line, "#")
	}
	return blocks
}

// sentences yields the sentences of a block. The expression end matches the end of a sentence.
func sentences(block string, end *regexp.Regexp) iter.Seq[string] {
	return strings.SplitSeq(end.ReplaceAllString(block, "$0\n"), "\n")
}

// wordsOf counts the words of a sentence. A word has a letter or a digit.
func wordsOf(sentence string) (n int) {
	for _, word := range strings.Fields(sentence) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}
