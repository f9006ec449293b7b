// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command plot draws tables of the docs as one SVG, and prints the SVG. The charts of the benchmarks show the cost of
// starting a pod, and of reaching another pod. The charts of the fleet show how long the pods of a large cluster wait
// for EC2. The waterfalls show which calls of EC2 an ADD waits for.
//
//	plot docs/bench-icount.txt docs/bench-traffic.txt >docs/speed.svg
//	plot docs/fleet.md >docs/fleet.svg
//	plot docs/cold.txt >docs/cold.svg
//
// Bars are rectangles, so a template is enough. A plotting library would add ten modules to go.mod.
package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/template"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

// A Chart shows the figures of one column of a table.
type Chart struct {
	Title  string
	column string
	ratios bool // show the ratios to a reference, which are in the next column x
	Bars   []Bar

	Index   int
	longest float64
}

// A Bar is a row of the table.
type Bar struct {
	Name   string
	begins []string // the first cells of the row
	Own    bool
	Figure float64
}

const otherNode = "pod, other node"

func charts() []Chart {
	return []Chart{
		{Title: "Instructions of a pod's ADD and DEL", column: "CPU ADD+DEL", ratios: true, Bars: []Bar{
			{Name: "this", begins: []string{"ours"}, Own: true},
			{Name: "three Go programs that do nothing", begins: []string{"noop + noop + noop"}},
			{Name: "ptp + host-local", begins: []string{"ptp + host-local"}},
			{Name: "this, as three chained plugins", begins: []string{"ours, three plugins"}, Own: true},
			{Name: "ptp, masquerade by iptables", begins: []string{"the same, ipMasq iptables"}},
			{Name: "ptp, masquerade by nftables", begins: []string{"the same, ipMasq nftables"}},
		}},
		{Title: "Instructions of a request, pod to pod on two nodes", column: "rr", ratios: true, Bars: []Bar{
			{Name: "bare ipvlan, without Services", begins: []string{"ipvlan, bare", otherNode}},
			{Name: "this", begins: []string{"ours", otherNode}, Own: true},
			{Name: "bridge on the ENI", begins: []string{"bridge on the ENI", otherNode}},
			{Name: "routed veth pairs", begins: []string{"veth, routed", otherNode}},
			{Name: "routed veth, connection tracking", begins: []string{"veth, routed, conntrack", otherNode}},
		}},
	}
}

// fleet returns the charts of the table "all at once". Each chart has a bar for each row of the table.
func fleet() []Chart {
	return []Chart{
		{Title: "Seconds until the last pod runs, all nodes at once", column: "last pod"},
		{Title: "Calls that EC2 throttles meanwhile", column: "throttled"},
	}
}

// rows returns a bar for each row of a table that has a figure in the column. A row has no figure if not all of its
// pods run.
func rows(t table.Table, column string) (bars []Bar) {
	for _, row := range t[min(1, len(t)):] {
		if i := slices.Index(t[0], column); i < 0 || i >= len(row) || strings.Contains(row[i], "%") {
			continue
		}
		others := strings.HasPrefix(row[0], "amazon") || strings.HasPrefix(row[0], "the original")
		bars = append(bars, Bar{Name: row[0], begins: row[:1], Own: !others})
	}
	return bars
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(files []string, w io.Writer) error {
	var all []Chart
	switch len(files) {
	case 1:
		if t := second(files[0]); len(t) > 1 && slices.Contains(t[0], "begins") {
			return drawWaterfalls(t, w)
		}
		all, files = fleet(), slices.Repeat(files, 2)
	case 2:
		all = charts()
	default:
		return errors.New("usage: plot BENCH-ICOUNT BENCH-TRAFFIC, or plot FLEET, or plot COLD")
	}
	for i, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		all[i].Index = i
		if err := all[i].fill(table.Parse(string(b))); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return drawing.Execute(w, all)
}

// second returns the second table of a file; nil if there is none.
func second(file string) table.Table {
	b, _ := os.ReadFile(file) // after an error here, run reads the file again and returns the error
	_, _, after := table.Cut(string(b))
	return table.Parse(after)
}

// fill reads the figures from the table.
func (c *Chart) fill(t table.Table) error {
	read, least := t.Number, -1.0
	if c.ratios {
		read, least = t.Ratio, 0
	}
	if c.Bars == nil {
		c.Bars = rows(t, c.column)
	}
	if len(c.Bars) == 0 {
		return errors.New("there is no table")
	}
	for i := range c.Bars {
		b := &c.Bars[i]
		if b.Figure = read(c.column, b.begins...); b.Figure <= least || !t.Has(c.column, b.begins...) {
			return fmt.Errorf("there is no figure of %s of %q", c.column, b.begins)
		}
		c.longest = max(c.longest, b.Figure)
	}
	return nil
}

// Text returns the figure of a bar.
func (c Chart) Text(b Bar) string {
	if c.ratios {
		return fmt.Sprintf("%.2f", b.Figure)
	}
	return fmt.Sprintf("%.0f", b.Figure)
}

// Width returns the length of a bar in pixels.
func (c Chart) Width(b Bar) float64 {
	const most = 175
	return most * b.Figure / c.longest
}

// row returns the y coordinate of a chart's bar.
func row(i int) int { return 44 + 26*i }

// height returns the height of the picture, in which the chart with the most bars has room.
func height(charts []Chart) (most int) {
	for _, c := range charts {
		most = max(most, row(len(c.Bars))+5)
	}
	return most
}

//go:embed speed.svg.tmpl
var svg string

var drawing = template.Must(template.New("svg").Funcs(template.FuncMap{
	"column": func(i int) int { return 10 + 490*i },
	"row":    row,
	"height": height,
	"add":    func(a int, b float64) float64 { return float64(a) + b },
}).Parse(svg))
