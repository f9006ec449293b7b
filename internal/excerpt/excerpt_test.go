// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package excerpt

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"
)

func TestQuote(t *testing.T) {
	for text, want := range map[string]string{
		"":                        `""`,
		"shop/cart-0":             `"shop/cart-0"`,
		"\x1b[2J\u202e\x00\n":     `"\x1b[2J\u202e\x00\n"`,
		strings.Repeat("a", 64):   `"` + strings.Repeat("a", 64) + `"`,
		strings.Repeat("a", 9999): `"` + strings.Repeat("a", 64) + `"... (9999 bytes)`,
	} {
		if got := Quote(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"shop/cart-0":      "shop/cart-0",
		"größe \\ ' \"":    "größe \\ ' \"",
		"a\x1b[2Jb":        `a\x1b[2Jb`,
		"a\u202eb\u2066":   `a\u202eb\u2066`,
		"a\nb\tc\x00\x7f":  `a\nb\tc\x00\x7f`,
		"\xff\ufffd\u009b": `\xff` + "\ufffd" + `\u009b`,
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got, want := Lines("pod\tend\na\x1b]0;x\x07\r\t-\n"), "pod\tend\na\\x1b]0;x\\a\\r\t-\n"; got != want {
		t.Errorf("lines %q, want %q", got, want)
	}
}

func TestMessage(t *testing.T) {
	if got := Message("pod shop/cart-0\nno address"); got != "pod shop/cart-0\nno address" {
		t.Errorf("a short message: %q", got)
	}
	if got := Message(strings.Repeat("\x1b", 1<<20)); len(got) > 5*maxMessage ||
		!strings.HasSuffix(got, "... (1040384 more bytes)") {
		t.Errorf("a long message has %d bytes", len(got))
	}
}

func TestJoin(t *testing.T) {
	var all []error
	for i := range 1244 {
		all = append(all, fmt.Errorf("mistake %d", i))
	}
	err := Join(all)
	if lines := strings.Split(err.Error(), "\n"); len(lines) != maxMistakes+1 ||
		lines[maxMistakes] != "and 1234 more mistakes" || !errors.Is(err, all[0]) {
		t.Errorf("joined: %v", err)
	}
	if err := Join(all[:maxMistakes]); strings.Count(err.Error(), "\n") != maxMistakes-1 {
		t.Errorf("as many as a message lists: %v", err)
	}
	if Join(nil) != nil {
		t.Error("no mistake is an error")
	}
}

// FuzzPlain checks that the result has no control characters that a terminal obeys. Printable text must stay unchanged.
func FuzzPlain(f *testing.F) {
	f.Add("shop/cart-0")
	f.Add("\x1b[2J\u202e\xff\u009b")
	f.Fuzz(func(t *testing.T, text string) {
		got := Plain(text)
		bad := func(r rune) bool { return !unicode.IsPrint(r) && r != unicode.ReplacementChar }
		if i := strings.IndexFunc(got, bad); i >= 0 {
			t.Errorf("%q: %q", text, got)
		}
		if Plain(got) != got {
			t.Errorf("%q: %q is not the same again", text, got)
		}
	})
}
