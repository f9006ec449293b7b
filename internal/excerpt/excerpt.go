// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package excerpt prepares texts from outside this suite for messages and tables: texts of pods, of files, of EC2. A
// message shows only as much of such a text as fits on a line. The results contain no characters that control a
// terminal, such as those of an escape sequence, or a mark that changes the direction of writing.
package excerpt

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxQuoted   = 64      // bytes of a text that a message quotes
	maxMistakes = 10      // the maximum number of mistakes that a message lists
	maxMessage  = 8 << 10 // bytes of a message, at most: more than an event or a line of a log shows
)

// Quote returns a text in quotes, as %q does. For a long text, Quote returns the beginning and the length.
func Quote(text string) string {
	if len(text) <= maxQuoted {
		return strconv.Quote(text)
	}
	return fmt.Sprintf("%s... (%d bytes)", strconv.Quote(text[:maxQuoted]), len(text))
}

// Plain replaces characters of a text that are not printable by escapes. Newlines and tabs are not printable.
func Plain(text string) string { return escapeText(text, "") }

// Lines is Plain for a text of several lines, such as a table: newlines and tabs stay.
func Lines(text string) string { return escapeText(text, "\n\t") }

// escapeText replaces characters of a text that are not printable by escapes, except the characters in unescaped.
func escapeText(text, unescaped string) string {
	if isPlain(text, unescaped) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		if strings.ContainsRune(unescaped, r) {
			b.WriteRune(r)
			continue
		}
		writeRune(&b, text[i:], r)
	}
	return b.String()
}

// writeRune writes r, which is the first rune of a text, or an escape for it.
func writeRune(b *strings.Builder, text string, r rune) {
	switch {
	case r == utf8.RuneError && !strings.HasPrefix(text, string(utf8.RuneError)):
		fmt.Fprintf(b, `\x%02x`, text[0])
	case unicode.IsPrint(r):
		b.WriteRune(r)
	default:
		b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
	}
}

// isPlain reports whether each character of a text is printable ASCII, or one of the characters in unescaped. This is
// true for nearly all texts.
func isPlain(text, unescaped string) bool {
	for i := range len(text) {
		if c := text[i]; (c < ' ' || c > '~') && strings.IndexByte(unescaped, c) < 0 {
			return false
		}
	}
	return true
}

// Message is Lines for a message. Of a message of more than 8 KiB, it returns only the first 8 KiB.
func Message(text string) string {
	if cut := len(text) - maxMessage; cut > 0 {
		return fmt.Sprintf("%s... (%d more bytes)", Lines(text[:maxMessage]), cut)
	}
	return Lines(text)
}

// Join joins errors as errors.Join does. Of more than ten errors, the result has only the first ten, and the number of
// the others.
func Join(all []error) error {
	if rest := len(all) - maxMistakes; rest > 0 {
		all = append(all[:maxMistakes:maxMistakes], fmt.Errorf("and %d more mistakes", rest))
	}
	return errors.Join(all...)
}
