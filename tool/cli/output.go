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

// Answer writes v as JSON if the command line asks for JSON. Otherwise, it writes the output of the function "text". In
// this output, it escapes characters that are not printable.
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
		// Escape the text, because parts of it may come from pods, and a terminal obeys escape sequences.
		b.WriteString(excerpt.Lines(plain.String()))
	}
	if _, err := b.WriteTo(c.App.Writer); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// Table writes rows as the command's answer. A row is a struct with a field for each column. The heading of a column is
// the field's tag "head", or else the field's JSON name. A field with the tag head:"-" is only in the JSON.
func Table[Row any](c *Context, rows []Row) error {
	if rows == nil {
		rows = []Row{} // [], not null
	}
	return Answer(c, rows, func(w io.Writer) { Tabulate(w, rows) })
}

// Tabulate writes rows as a table, in the format of the original tool. Each column, also the last, is three spaces
// wider than its widest text.
func Tabulate[Row any](w io.Writer, rows []Row) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	defer t.Flush()
	var shown [][]int
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Row]()) {
		if h := heading(f); h != "-" && !f.Anonymous {
			fmt.Fprint(t, h, "\t")
			shown = append(shown, f.Index)
		}
	}
	fmt.Fprintln(t)
	var line bytes.Buffer
	for _, r := range rows {
		fields := reflect.ValueOf(r) // call ValueOf once per row, because it copies the row
		for _, i := range shown {
			line.WriteString(Cell(fields.FieldByIndex(i).Interface()) + "\t")
		}
		line.WriteByte('\n')
		_, _ = line.WriteTo(t)
	}
}

func heading(f reflect.StructField) string {
	if h, ok := f.Tag.Lookup("head"); ok {
		return h
	}
	return f.Tag.Get("json")
}

// Cell returns the text of a value in a table. An invalid CIDR stands for no CIDR, so its text is empty.
func Cell(v any) string {
	// Most cells are strings. Sprint would be slow for them.
	text, ok := v.(string)
	if !ok {
		text = fmt.Sprint(v)
	}
	if p, ok := v.(netip.Prefix); ok && !p.IsValid() {
		text = ""
	}
	return excerpt.Plain(text) // escape line breaks and tabs, so that the text stays in its cell
}

// List returns a copy of a slice. JSON writes an empty copy as [], and not as null.
func List[T any](s []T) []T { return append([]T{}, s...) }
