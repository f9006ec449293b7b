// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/ec2sim"
)

// A report is what was found out.
type report struct {
	icount   bool
	rounds   int
	subjects []*subject
	notes    []string
}

func (r *report) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(r.notes, n) {
		r.notes = append(r.notes, n)
	}
}

// calls notes what EC2 and the metadata service were asked.
func (r *report) calls(ec2 []ec2sim.Call, metadata []string) {
	r.note("asked meanwhile: EC2 %d times, metadata %d times", len(ec2), len(metadata))
	for _, c := range slices.Compact(slices.Sorted(slices.Values(append(texts(ec2), metadata...)))) {
		r.note("  %s", c)
	}
}

func texts(calls []ec2sim.Call) (t []string) {
	for _, c := range calls {
		t = append(t, c.String())
	}
	return t
}

func (r *report) write(w io.Writer) error {
	for _, line := range []string{machine(), r.unit()} {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintln(w)
	fmt.Fprint(w, r.table())
	if t := r.plugins(); len(t) > 1 {
		fmt.Fprintf(w, "\nOurs, plugin by plugin, one call at once:\n\n%s", t)
	}
	if len(r.notes) > 0 {
		fmt.Fprintln(w)
	}
	_, err := fmt.Fprint(w, strings.Join(append(r.notes, ""), "\n"))
	return err
}

// machine is the line that says what was measured on.
func machine() string {
	var u syscall.Utsname
	_ = syscall.Uname(&u)
	release := make([]byte, 0, len(u.Release))
	for _, c := range u.Release {
		release = append(release, byte(c))
	}
	release, _, _ = bytes.Cut(release, []byte{0})
	model := "unknown CPU"
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(cpuinfo)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			model = strings.TrimLeft(strings.TrimSpace(name), ": \t")
			break
		}
	}
	return fmt.Sprintf("Linux %s, %d x %s, %s", release, runtime.NumCPU(), model, runtime.Version())
}

func (r *report) unit() string {
	if r.icount {
		return fmt.Sprintf("thousand instructions, of kernel and processes together; %d rounds", r.rounds)
	}
	return fmt.Sprintf("milliseconds; %d rounds", r.rounds)
}

func (r *report) number(d time.Duration) string {
	if r.icount {
		return strconv.FormatInt(d.Microseconds(), 10) // an instruction takes a nanosecond of this clock
	}
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 1, 64)
}

// header names the columns. Those of ratios stand behind what they are of.
var header = []string{"chain", "c", "ADD min", "ADD p50", "ADD p90", "x", "DEL min", "DEL p50", "DEL p90", "x", "CPU ADD+DEL", "x"}

func (r *report) table() table {
	t := table{header}
	for _, s := range r.subjects {
		row := []string{s.label, strconv.Itoa(s.c)}
		to := cmp.Or(s.reference, &subject{})
		for _, verb := range [][2][]sample{{s.add, to.add}, {s.del, to.del}} {
			w := walls(verb[0])
			row = append(row, r.number(quantile(w, 0)), r.number(quantile(w, 0.5)), r.number(quantile(w, 0.9)),
				ratio(quantile(w, 0.5), quantile(walls(verb[1]), 0.5)))
		}
		t = append(t, append(row, r.number(s.cpu()), ratio(s.cpu(), to.cpu())))
	}
	return t
}

// plugins is the table of what each plugin of our chain takes.
func (r *report) plugins() table {
	t := table{{"plugin", "ADD p50", "CPU", "DEL p50", "CPU"}}
	i := slices.IndexFunc(r.subjects, func(s *subject) bool { return s.name == ours && s.c == 1 })
	if i < 0 {
		return t
	}
	s := r.subjects[i]
	add, del := byPlugin(s.add), byPlugin(s.del)
	for _, p := range s.list.Plugins {
		name := p.Network.Type
		t = append(t, []string{name,
			r.number(quantile(walls(add[name]), 0.5)), r.number(mean(add[name])),
			r.number(quantile(walls(del[name]), 0.5)), r.number(mean(del[name]))})
	}
	return t
}

func byPlugin(samples []sample) map[string][]sample {
	m := map[string][]sample{}
	for _, s := range samples {
		for _, step := range s.steps {
			m[step.plugin] = append(m[step.plugin], sample{cost: step.cost})
		}
	}
	return m
}

// cpu is what an ADD and its DEL take of the CPUs, on average: at full load, the throughput.
func (s *subject) cpu() time.Duration { return mean(s.add) + mean(s.del) }

func mean(samples []sample) time.Duration {
	var sum time.Duration
	for _, s := range samples {
		sum += s.cpu
	}
	return sum / time.Duration(max(1, len(samples)))
}

func walls(samples []sample) []time.Duration {
	var w []time.Duration
	for _, s := range samples {
		w = append(w, s.wall)
	}
	slices.Sort(w)
	return w
}

// quantile returns the q-quantile of what is sorted.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func ratio(a, b time.Duration) string {
	if b == 0 {
		return "" // there is nothing to compare with
	}
	return strconv.FormatFloat(float64(a)/float64(b), 'f', 2, 64)
}
