// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command plot draws the committed output of the benchmarks as one SVG, which it prints. The charts show the cost of
// starting a pod, and of reaching another pod.
//
//	plot docs/bench-icount.txt docs/bench-traffic.txt >docs/speed.svg
//
// Bars are rectangles, so a template is enough. A plotting library would add ten modules to those of the plugins.
package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"text/template"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/bench/table"
)

// A Chart shows the ratios of one column of a table.
type Chart struct {
	Title  string
	column string
	Bars   []Bar

	Index   int
	longest float64
}

// A Bar is a row of the table.
type Bar struct {
	Name   string
	begins []string // its first cells
	Own    bool
	Ratio  float64
}

const otherNode = "pod, other node"

func charts() []Chart {
	return []Chart{
		{Title: "Instructions of a pod's ADD and DEL", column: "CPU ADD+DEL", Bars: []Bar{
			{Name: "this", begins: []string{"ours"}, Own: true},
			{Name: "three Go programs that do nothing", begins: []string{"noop + noop + noop"}},
			{Name: "ptp + host-local", begins: []string{"ptp + host-local"}},
			{Name: "this, as three chained plugins", begins: []string{"ours, three plugins"}, Own: true},
			{Name: "ptp, masquerade by iptables", begins: []string{"the same, ipMasq iptables"}},
			{Name: "ptp, masquerade by nftables", begins: []string{"the same, ipMasq nftables"}},
		}},
		{Title: "Instructions of a request, pod to pod on two nodes", column: "rr", Bars: []Bar{
			{Name: "bare ipvlan, without Services", begins: []string{"ipvlan, bare", otherNode}},
			{Name: "this", begins: []string{"ours", otherNode}, Own: true},
			{Name: "bridge on the ENI", begins: []string{"bridge on the ENI", otherNode}},
			{Name: "routed veth pairs", begins: []string{"veth, routed", otherNode}},
			{Name: "routed veth, connection tracking", begins: []string{"veth, routed, conntrack", otherNode}},
		}},
	}
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(files []string, w io.Writer) error {
	all := charts()
	if len(files) != len(all) {
		return errors.New("usage: plot BENCH-ICOUNT BENCH-TRAFFIC")
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

// fill reads the ratios from the table.
func (c *Chart) fill(t table.Table) error {
	for i := range c.Bars {
		b := &c.Bars[i]
		if b.Ratio = t.Ratio(c.column, b.begins...); b.Ratio == 0 {
			return fmt.Errorf("there is no ratio of %s of %q", c.column, b.begins)
		}
		c.longest = max(c.longest, b.Ratio)
	}
	return nil
}

// Width returns the length of a bar in pixels.
func (c Chart) Width(b Bar) float64 {
	const most = 175
	return most * b.Ratio / c.longest
}

//go:embed speed.svg.tmpl
var svg string

var drawing = template.Must(template.New("svg").Funcs(template.FuncMap{
	"column": func(i int) int { return 10 + 490*i },
	"row":    func(i int) int { return 44 + 26*i },
	"add":    func(a int, b float64) float64 { return float64(a) + b },
}).Parse(svg))
