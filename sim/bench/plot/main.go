// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command plot draws tables of the docs as an SVG, and prints the SVG. The first command below draws the cost of a
// pod's ADD, and the cost of a request to another pod. The second draws how long the pods of a large cluster wait for
// EC2. The third draws when the EC2 calls of an ADD begin and end.
//
//	plot docs/bench-icount.txt docs/bench-traffic.txt >docs/speed.svg
//	plot docs/fleet.md >docs/fleet.svg
//	plot docs/cold.txt >docs/cold.svg
//
// plot uses a text template, which is enough to draw bars. A plotting library would add ten modules to go.mod.
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

// A Chart shows the figures of one column of a table as bars.
type Chart struct {
	Title  string
	column string
	ratios bool // show the ratios in the next column "x", instead of the figures
	Bars   []Bar

	Index     int
	maxFigure float64
}

// A Bar shows one row of the table.
type Bar struct {
	Name   string
	rowKey []string // the first cells of the row
	Own    bool
	Figure float64
}

const otherNode = "pod, other node"

func benchCharts() []Chart {
	return []Chart{
		{Title: "Instructions of a pod's ADD and DEL", column: "CPU ADD+DEL", ratios: true, Bars: []Bar{
			{Name: "this", rowKey: []string{"ours"}, Own: true},
			{Name: "three Go programs that do nothing", rowKey: []string{"noop + noop + noop"}},
			{Name: "ptp + host-local", rowKey: []string{"ptp + host-local"}},
			{Name: "this, as three chained plugins", rowKey: []string{"ours, three plugins"}, Own: true},
			{Name: "ptp, masquerade by iptables", rowKey: []string{"the same, ipMasq iptables"}},
			{Name: "ptp, masquerade by nftables", rowKey: []string{"the same, ipMasq nftables"}},
		}},
		{Title: "Instructions of a request, pod to pod on two nodes", column: "rr", ratios: true, Bars: []Bar{
			{Name: "bare ipvlan, without Services", rowKey: []string{"ipvlan, bare", otherNode}},
			{Name: "this", rowKey: []string{"ours", otherNode}, Own: true},
			{Name: "bridge on the ENI", rowKey: []string{"bridge on the ENI", otherNode}},
			{Name: "routed veth pairs", rowKey: []string{"veth, routed", otherNode}},
			{Name: "routed veth, connection tracking", rowKey: []string{"veth, routed, conntrack", otherNode}},
		}},
	}
}

// fleetCharts returns the charts of the table "all at once" of docs/fleet.md.
func fleetCharts() []Chart {
	return []Chart{
		{Title: "Seconds until the last pod runs, all nodes at once", column: "last pod"},
		{Title: "Calls that EC2 throttles meanwhile", column: "throttled"},
	}
}

// barsOf returns a bar for each row that has a figure in the column. A percentage is no figure: it says that some pods
// of the row have not started.
func barsOf(t table.Table, column string) (bars []Bar) {
	for _, row := range t[min(1, len(t)):] {
		if i := slices.Index(t[0], column); i < 0 || i >= len(row) || strings.Contains(row[i], "%") {
			continue
		}
		others := strings.HasPrefix(row[0], "amazon") || strings.HasPrefix(row[0], "the original")
		bars = append(bars, Bar{Name: row[0], rowKey: row[:1], Own: !others})
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
		if t := secondTable(files[0]); len(t) > 1 && slices.Contains(t[0], "begins") {
			return drawWaterfalls(t, w)
		}
		all, files = fleetCharts(), slices.Repeat(files, 2)
	case 2:
		all = benchCharts()
	default:
		return errors.New("usage: plot BENCH-ICOUNT BENCH-TRAFFIC, or plot FLEET, or plot COLD")
	}
	for i, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		all[i].Index = i
		if err := all[i].readFigures(table.Parse(string(b))); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return drawing.Execute(w, all)
}

// secondTable returns the second table of a file; nil if there is none.
func secondTable(file string) table.Table {
	b, _ := os.ReadFile(file) // no error is lost: the function run reads the file again, and returns the error
	_, _, after := table.Cut(string(b))
	return table.Parse(after)
}

func (c *Chart) readFigures(t table.Table) error {
	read, least := t.Number, -1.0
	if c.ratios {
		read, least = t.Ratio, 0
	}
	if c.Bars == nil {
		c.Bars = barsOf(t, c.column)
	}
	if len(c.Bars) == 0 {
		return errors.New("there is no table")
	}
	for i := range c.Bars {
		b := &c.Bars[i]
		if b.Figure = read(c.column, b.rowKey...); b.Figure <= least || !t.Has(c.column, b.rowKey...) {
			return fmt.Errorf("the column %s has no figure in the row %q", c.column, b.rowKey)
		}
		c.maxFigure = max(c.maxFigure, b.Figure)
	}
	return nil
}

// Text returns the text beside a bar: its figure.
func (c Chart) Text(b Bar) string {
	if c.ratios {
		return fmt.Sprintf("%.2f", b.Figure)
	}
	return fmt.Sprintf("%.0f", b.Figure)
}

// Width returns the length of a bar in pixels.
func (c Chart) Width(b Bar) float64 {
	const most = 175
	return most * b.Figure / c.maxFigure
}

func barY(i int) int { return 44 + 26*i }

// pictureHeight returns the height of a picture with room for the chart with the most bars.
func pictureHeight(charts []Chart) (most int) {
	for _, c := range charts {
		most = max(most, barY(len(c.Bars))+5)
	}
	return most
}

//go:embed speed.svg.tmpl
var svg string

var drawing = template.Must(template.New("svg").Funcs(template.FuncMap{
	"column": func(i int) int { return 10 + 490*i },
	"row":    barY,
	"height": pictureHeight,
	"add":    func(a int, b float64) float64 { return float64(a) + b },
}).Parse(svg))
