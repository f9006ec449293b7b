// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest

import (
	"slices"
	"strings"
)

// A Matrix is a table with the results of a test. Set adds new rows below the others, and new columns to the right of
// the others.
type Matrix struct {
	rows, columns []string
	cells         map[[2]string]string
}

// Set sets the text of a cell, and adds the row and the column if they are new.
func (m *Matrix) Set(row, column, text string) {
	if m.cells == nil {
		m.cells = map[[2]string]string{}
	}
	if !slices.Contains(m.rows, row) {
		m.rows = append(m.rows, row)
	}
	if !slices.Contains(m.columns, column) {
		m.columns = append(m.columns, column)
	}
	m.cells[[2]string{row, column}] = text
}

// Columns returns the number of columns.
func (m *Matrix) Columns() int { return len(m.columns) }

// Markdown returns the table in Markdown, between empty lines. corner is the heading of the column with the names of
// the rows.
func (m *Matrix) Markdown(corner string) string {
	var b strings.Builder
	b.WriteString("\n| " + corner + " | " + strings.Join(m.columns, " | ") + " |\n|---" +
		strings.Repeat("|---", len(m.columns)) + "|\n")
	for _, row := range m.rows {
		b.WriteString("| " + row + " |")
		for _, column := range m.columns {
			b.WriteString(" " + m.cells[[2]string{row, column}] + " |")
		}
		b.WriteString("\n")
	}
	return b.String() + "\n"
}
