// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package excerpt prepares texts from outside this suite for messages and tables: texts of pods, of files, of EC2. A
// message shows as much of such a text as fits on a line. The result contains nothing that a terminal would obey, such
// as an escape sequence, or a mark that changes the direction of writing.
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
	longest  = 64      // bytes of a text that a message quotes
	mistakes = 10      // the maximum number of mistakes that a message lists
	message  = 8 << 10 // bytes of a message, at most: more than an event or a line of a log shows
)

// Quote returns a text in quotes, as %q does. For a long text, Quote returns the beginning and the length.
func Quote(text string) string {
	if len(text) <= longest {
		return strconv.Quote(text)
	}
	return fmt.Sprintf("%s... (%d bytes)", strconv.Quote(text[:longest]), len(text))
}

// Plain returns a text with escapes for characters that are not printable, also for the end of a line.
func Plain(text string) string { return escape(text, "") }

// Lines is Plain for a text of several lines with tabs, such as a table.
func Lines(text string) string { return escape(text, "\n\t") }

// escape returns a text with escapes for characters that are not printable, but not for the characters in stays.
func escape(text, stays string) string {
	if plain(text, stays) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		if strings.ContainsRune(stays, r) {
			b.WriteRune(r)
			continue
		}
		write(&b, text[i:], r)
	}
	return b.String()
}

// write writes the first rune of a text, or an escape for it.
func write(b *strings.Builder, text string, r rune) {
	switch {
	case r == utf8.RuneError && !strings.HasPrefix(text, string(utf8.RuneError)):
		fmt.Fprintf(b, `\x%02x`, text[0])
	case unicode.IsPrint(r):
		b.WriteRune(r)
	default:
		b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
	}
}

// plain reports whether each character of a text is printable ASCII, or one of the characters in stays. This is true
// for nearly all texts.
func plain(text, stays string) bool {
	for i := range len(text) {
		if c := text[i]; (c < ' ' || c > '~') && strings.IndexByte(stays, c) < 0 {
			return false
		}
	}
	return true
}

// Message returns a message with escapes for characters that are not printable. It cuts a message of more than 8 KiB.
func Message(text string) string {
	if cut := len(text) - message; cut > 0 {
		return fmt.Sprintf("%s... (%d more bytes)", Lines(text[:message]), cut)
	}
	return Lines(text)
}

// Join joins mistakes, as errors.Join does. If there are more than ten mistakes, Join names the first ten, and says how
// many more there are.
func Join(all []error) error {
	if rest := len(all) - mistakes; rest > 0 {
		all = append(all[:mistakes:mistakes], fmt.Errorf("and %d more mistakes", rest))
	}
	return errors.Join(all...)
}
