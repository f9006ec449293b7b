// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

// An output prints the text of the demo: lines that stay and, on a terminal, one line that shows the progress.
type output struct {
	w        io.Writer
	terminal bool
	failures int
}

func newOutput(f *os.File) *output { return &output{w: f, terminal: machine.IsTerminal(f)} }

// width is the maximum length of a line.
const width = 100

const (
	eraseLine = "\r\x1b[K"
	green     = "\x1b[32m"
	red       = "\x1b[31m"
	plain     = "\x1b[m"
)

// showProgress replaces the last line with the progress, if the output is a terminal.
func (o *output) showProgress(format string, args ...any) {
	if o.terminal {
		fmt.Fprintf(o.w, eraseLine+format+" ...", args...)
	}
}

// clearProgress removes the line that showProgress has printed.
func (o *output) clearProgress() {
	if o.terminal {
		fmt.Fprint(o.w, eraseLine)
	}
}

func (o *output) printLine(format string, args ...any) {
	o.clearProgress()
	fmt.Fprintf(o.w, format+"\n", args...)
}

func (o *output) printVerdict(name, detail string, err error) {
	word, colour := "ok", green
	if err != nil {
		o.failures++
		word, colour, detail = "FAIL", red, strings.ReplaceAll(err.Error(), "\n", "\n"+strings.Repeat(" ", 7))
	}
	if o.terminal {
		word = colour + word + plain + strings.Repeat(" ", 4-len(word))
	}
	o.printLine("%-4s %-34s %s", word, name, detail)
}

func (o *output) printWorld(s *scene) {
	for _, n := range s.Nodes {
		o.printLine("%s  %s, %s, public address %s, %d pods:", n.Name, n.Type, n.Addr(), n.PublicIP(), len(n.Pods))
		for _, e := range n.ENIs()[1:] {
			var addrs []netip.Addr
			for _, p := range n.On(e.Index) {
				addrs = append(addrs, p.Addr(paths.IPv4))
			}
			slices.SortFunc(addrs, netip.Addr.Compare)
			o.printLine("  eth%d  %s in %s:  %s", e.Index, shortID(e.ID), e.Subnet, compactAddrs(addrs))
		}
	}
	o.printLine("")
}

// shortID removes the leading zeros from the number in an ID of the simulator.
func shortID(id string) string {
	kind, number, _ := strings.Cut(id, "-")
	return kind + "-" + strings.TrimLeft(number, "0")
}

// compactAddrs returns addresses as text, for example "100.64.0.4 .5 .6".
func compactAddrs(addrs []netip.Addr) string {
	var words []string
	for i, a := range addrs {
		word := a.String()
		dot := strings.LastIndexByte(word, '.')
		if i > 0 && dot >= 0 && strings.HasPrefix(addrs[i-1].String(), word[:dot+1]) {
			word = word[dot:]
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func (o *output) printAddTimes(a addResults) {
	o.printDurations("ADD", "in bursts, asking EC2", a.cold, "")
	asked := fmt.Sprintf("EC2 calls %d, metadata calls %d", a.warmCalls, a.warmMetadata)
	o.printDurations("ADD", "with free addresses", a.warm, asked)
}

func (o *output) printDurations(verb, how string, took []time.Duration, remark string) {
	slices.Sort(took)
	s := func(d time.Duration) float64 { return d.Seconds() }
	line := fmt.Sprintf("%s  %d pods, %-22s min %.2f  p50 %.2f  max %.2f s  %s", verb, len(took), how+":",
		s(took[0]), s(took[len(took)/2]), s(took[len(took)-1]), remark)
	o.printLine("%s", strings.TrimSpace(line))
}

func (o *output) printCalls(s *scene) {
	var metadata int
	for _, n := range s.Nodes {
		metadata += len(n.MetadataCalls())
	}
	o.printLine("EC2  %s", wrapList(countCalls(s.EC2.Calls()), width-5))
	o.printLine("     and %d requests to the metadata service", metadata)
	o.printLine("")
}

func countCalls(calls []ec2sim.Call) string {
	counts := map[string]int{}
	for _, c := range calls {
		counts[c.Action]++
	}
	var words []string
	for _, action := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%d %s", counts[action], action))
	}
	return strings.Join(words, ", ")
}

func wrapList(list string, width int) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Split(list, ", ") {
		if i > 0 {
			b.WriteByte(',')
			if column += len(word) + 2; column > width {
				b.WriteString("\n    ")
				column = len(word)
			}
			b.WriteByte(' ')
		} else {
			column = len(word)
		}
		b.WriteString(word)
	}
	return b.String()
}
