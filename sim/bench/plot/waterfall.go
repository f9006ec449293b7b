// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"text/template"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

// A Waterfall shows when the EC2 calls of an ADD begin and end.
type Waterfall struct {
	Title string
	Y     int
	Calls []Call
}

// A Call is a row of the table. A Call that takes no time has only a mark in the picture.
type Call struct {
	Name         string
	Begins, Ends int  // milliseconds
	Path         bool // all later calls wait for this call
}

// parseWaterfalls reads a table with a row for each call. The columns are the Waterfall's title, the call's name, its
// begin and end, and "path" if all later calls wait for the call. Consecutive rows with the same title are one
// Waterfall.
func parseWaterfalls(t table.Table) (all []Waterfall, err error) {
	y := 10
	for _, row := range t[1:] {
		begins, err1 := strconv.Atoi(row[2])
		ends, err2 := strconv.Atoi(row[3])
		if err1 != nil || err2 != nil || begins > ends {
			return nil, fmt.Errorf("%q has no times", row)
		}
		if len(all) == 0 || all[len(all)-1].Title != row[0] {
			if len(all) > 0 {
				y += fallRow*len(all[len(all)-1].Calls) + gap
			}
			all = append(all, Waterfall{Title: row[0], Y: y})
		}
		w := &all[len(all)-1]
		w.Calls = append(w.Calls, Call{row[1], begins, ends, row[4] == "path"})
	}
	return all, nil
}

const fallRow, gap = 20, 40

func drawWaterfalls(t table.Table, w io.Writer) error {
	all, err := parseWaterfalls(t)
	if err != nil {
		return err
	}
	longest, last := 0, all[len(all)-1]
	for _, one := range all {
		for _, c := range one.Calls {
			longest = max(longest, c.Ends)
		}
	}
	const label, most = 250, 680.0
	x := func(ms int) string { return fmt.Sprintf("%.1f", label+most*float64(ms)/float64(longest)) }
	funcs := template.FuncMap{
		"x":   x,
		"row": func(i int) int { return 28 + fallRow*i },
		"width": func(c Call) string {
			return fmt.Sprintf("%.1f", max(3, most*float64(c.Ends-c.Begins)/float64(longest)))
		},
		"color": func(c Call) string {
			switch {
			case c.Begins == c.Ends:
				return "#1b9e77"
			case c.Path:
				return "#d95f02"
			}
			return "#9aa5b1"
		},
		"height": func() int { return last.Y + 28 + fallRow*len(last.Calls) + 5 },
	}
	return template.Must(template.New("svg").Funcs(funcs).Parse(fallSVG)).Execute(w, all)
}

//go:embed waterfall.svg.tmpl
var fallSVG string
