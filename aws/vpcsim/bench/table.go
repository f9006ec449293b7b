// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A table is rows of cells, the header first.
type table [][]string

// String prints Markdown that is aligned for the eye: names to the left, numbers to the right.
func (t table) String() string {
	widths := make([]int, len(t[0]))
	for _, row := range t {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for n, row := range t {
		for i, cell := range row {
			if i == 0 {
				fmt.Fprintf(&b, "| %-*s |", widths[i], cell)
				continue
			}
			fmt.Fprintf(&b, " %*s |", widths[i], cell)
		}
		b.WriteByte('\n')
		if n > 0 {
			continue
		}
		for i, w := range widths {
			if i == 0 {
				b.WriteString("|" + strings.Repeat("-", w+2) + "|")
				continue
			}
			b.WriteString(strings.Repeat("-", w+1) + ":|")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// parseTable reads the first table of a text.
func parseTable(text string) (t table) {
	for line := range strings.Lines(text) {
		line, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !isRow && t != nil {
			return t
		}
		if !isRow || strings.HasPrefix(line, "-") {
			continue
		}
		var row []string
		for cell := range strings.SplitSeq(strings.TrimSuffix(line, "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		t = append(t, row)
	}
	return t
}
