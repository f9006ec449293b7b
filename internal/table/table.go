// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package table reads and writes Markdown tables, in which benchmarks and tests record their results.
package table

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Table is a list of rows. The first row is the header. A row is a list of cells.
type Table [][]string

// String returns the table as Markdown. The first column is aligned to the left, the other columns to the right.
func (t Table) String() string {
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

// Parse reads the first table of a text.
func Parse(text string) Table {
	_, t, _ := Cut(text)
	return t
}

// Cut reads the first table of a text. It also returns the text before the table and the text after the table.
func Cut(text string) (before string, t Table, after string) {
	at := 0
	for line := range strings.Lines(text) {
		row, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !isRow && t != nil {
			break
		}
		at += len(line)
		if !isRow {
			before = text[:at]
			continue
		}
		if strings.Trim(row, "-:| ") == "" { // the line below the header
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.TrimSuffix(row, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		t = append(t, cells)
	}
	return before, t, text[at:]
}

// Number returns the number in the column with this head, in the first row that begins with the given cells. If there
// is no such row or no such column, it returns 0.
func (t Table) Number(column string, begins ...string) float64 {
	if len(t) == 0 {
		return 0
	}
	return t.cell(slices.Index(t[0], column), begins)
}

// Has reports whether the table has the row and the column that [Table.Number] needs for these arguments.
func (t Table) Has(column string, begins ...string) bool {
	return len(t) > 0 && slices.Contains(t[0], column) && slices.ContainsFunc(t[1:], func(row []string) bool {
		return len(row) >= len(begins) && slices.Equal(row[:len(begins)], begins)
	})
}

// Ratio returns the ratio that belongs to the number of [Table.Number]. The ratio is in the same row, in the first
// column with the head "x" to the right of the number.
func (t Table) Ratio(column string, begins ...string) float64 {
	if len(t) == 0 {
		return 0
	}
	of := slices.Index(t[0], column)
	right := slices.Index(t[0][of+1:], "x")
	if of < 0 || right < 0 {
		return 0
	}
	return t.cell(of+1+right, begins)
}

func (t Table) cell(column int, begins []string) float64 {
	for _, row := range t[1:] {
		if column >= 0 && column < len(row) && len(row) >= len(begins) && slices.Equal(row[:len(begins)], begins) {
			n, _ := strconv.ParseFloat(row[column], 64)
			return n
		}
	}
	return 0
}
