// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package excerpt prepares texts of others for messages and tables: texts from pods, from files, from EC2 and so on. It
// shortens these texts for messages, and escapes characters that control a terminal, such as an escape sequence or a
// mark that changes the direction of writing.
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
	maxQuoted   = 64      // maximum number of bytes of a text that a message quotes
	maxMistakes = 10      // maximum number of mistakes that a message lists
	maxMessage  = 8 << 10 // maximum number of bytes of a message; more would not fit into an event or a log line
)

// Quote returns a text in quotes, as %q does. For a long text, Quote returns the beginning and the length.
func Quote(text string) string {
	if len(text) <= maxQuoted {
		return strconv.Quote(text)
	}
	return fmt.Sprintf("%s... (%d bytes)", strconv.Quote(text[:maxQuoted]), len(text))
}

// Plain returns a text in which escapes replace all characters that are not printable. Newlines and tabs are not
// printable.
func Plain(text string) string { return escapeText(text, "") }

// Lines does what Plain does, but does not replace newlines and tabs. It is for a text of several lines, such as a
// table.
func Lines(text string) string { return escapeText(text, "\n\t") }

// escapeText returns a text in which escapes replace the characters that are not printable, except those in the
// argument "unescaped".
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

// writeRune writes r if r is printable, and otherwise an escape. r is the first rune of the text.
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

// isPlain reports whether escapeText can return the text as it is. The text may have only printable ASCII characters,
// and the characters in the argument "unescaped". Nearly all texts are plain.
func isPlain(text, unescaped string) bool {
	for i := range len(text) {
		if c := text[i]; (c < ' ' || c > '~') && strings.IndexByte(unescaped, c) < 0 {
			return false
		}
	}
	return true
}

// Message replaces characters of a message as Lines does. If the message has more than 8 KiB, the result has only the
// first 8 KiB, and says how many bytes are missing.
func Message(text string) string {
	if cut := len(text) - maxMessage; cut > 0 {
		return fmt.Sprintf("%s... (%d more bytes)", Lines(text[:maxMessage]), cut)
	}
	return Lines(text)
}

// Join joins errors as errors.Join does. If there are more than ten errors, the result has only the first ten, and says
// how many errors are missing.
func Join(all []error) error {
	if rest := len(all) - maxMistakes; rest > 0 {
		all = append(all[:maxMistakes:maxMistakes], fmt.Errorf("and %d more mistakes", rest))
	}
	return errors.Join(all...)
}
