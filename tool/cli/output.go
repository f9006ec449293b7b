// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"text/tabwriter"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/excerpt"
)

// Answer writes v as JSON if the command line asks for JSON, and otherwise by text. In the text, an escape stands for
// each character that is not printable.
func Answer(c *Context, v any, text func(w io.Writer)) error {
	var b bytes.Buffer
	if c.String("output") == "json" {
		e := json.NewEncoder(&b)
		e.SetIndent("", "    ")
		if err := e.Encode(v); err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
	} else {
		var plain bytes.Buffer
		text(&plain)
		b.WriteString(excerpt.Lines(plain.String())) // pods have written some of it, and a terminal obeys some text
	}
	if _, err := b.WriteTo(c.App.Writer); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// Table answers with rows, which are structs. A field is a column. Its heading is its JSON name, or its tag "head" if
// it has one. With the tag "-", a field is only in the JSON.
func Table[Row any](c *Context, rows []Row) error {
	if rows == nil {
		rows = []Row{} // [], not null
	}
	return Answer(c, rows, func(w io.Writer) { Tabulate(w, rows) })
}

// Tabulate writes the table as the original does: every cell, the last one too, is
// as wide as its column and three spaces.
func Tabulate[Row any](w io.Writer, rows []Row) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	defer t.Flush()
	var shown [][]int
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Row]()) {
		if h := head(f); h != "-" && !f.Anonymous {
			fmt.Fprint(t, h, "\t")
			shown = append(shown, f.Index)
		}
	}
	fmt.Fprintln(t)
	var line bytes.Buffer
	for _, r := range rows {
		fields := reflect.ValueOf(r) // once for all: it has a copy of the row
		for _, i := range shown {
			line.WriteString(Cell(fields.FieldByIndex(i).Interface()) + "\t")
		}
		line.WriteByte('\n')
		_, _ = line.WriteTo(t)
	}
}

// head is the heading of a column.
func head(f reflect.StructField) string {
	if h, ok := f.Tag.Lookup("head"); ok {
		return h
	}
	return f.Tag.Get("json")
}

// Cell is what a table shows of a value. A CIDR that an ENI has not is blank.
func Cell(v any) string {
	if p, ok := v.(netip.Prefix); ok && !p.IsValid() {
		return ""
	}
	return excerpt.Plain(fmt.Sprint(v)) // no cell begins another line or column
}

// List is a copy of s that JSON writes as [] if it is empty, and never as null.
func List[T any](s []T) []T { return append([]T{}, s...) }
