// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A report is the result of a run.
type report struct {
	icount    bool
	rounds    int
	reference string // the name of the chain or pod whose figures are the divisors of the ratios
	subjects  []*subject
	statuses  []*readiness
	upkeeps   []upkeep
	notes     []string
	callCount int // number of calls to EC2 and metadata during the measurement
}

var errAsked = errors.New("warm ADDs and DELs have asked EC2 or the metadata service")

func (r *report) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(r.notes, n) {
		r.notes = append(r.notes, n)
	}
}

func (r *report) recordCalls(ec2 []ec2sim.Call, metadata []string) {
	r.callCount += len(ec2) + len(metadata)
	r.note("During the measurement, processes called EC2 %d times, and the metadata service %d times.", len(ec2),
		len(metadata))
	for _, c := range ec2 {
		r.note("- %s", c)
	}
	for _, c := range metadata {
		r.note("- %s", c)
	}
}

func (r *report) write(w io.Writer) error {
	parts := []string{r.heading()}
	if len(r.subjects) > 0 {
		parts = append(parts, r.table().String())
	}
	for _, s := range r.subjects {
		if (s.name == ours || s.name == threePlugins) && s.callsAtOnce == 1 {
			parts = append(parts, s.label+", plugin by plugin:\n", r.pluginTable(s).String())
		}
	}
	if len(r.statuses) > 0 {
		parts = append(parts, "the verbs STATUS and VERSION: each call is one process; x is the ratio to STATUS of "+
			noopChain+":\n", r.statusTable().String())
	}
	if t := r.upkeepTable(); t != nil {
		parts = append(parts, "other costs of a node that has only pods of this project; each cost is the median of "+
			"five measurements:\n", t.String())
	}
	_, err := fmt.Fprintln(w, strings.Join(append(parts, strings.Join(r.notes, "\n")), "\n"))
	return err
}

func (r *report) heading() string {
	unit := "milliseconds"
	if r.icount {
		unit = instructions
	}
	return title(fmt.Sprintf("%s, about %d measurements for each row", unit, r.rounds), r.reference)
}

const instructions = "thousand instructions of kernel and processes together"

// title returns the first line of a table. figures says what the figures of the table are.
func title(figures, reference string) string {
	return fmt.Sprintf("%s; %s; x is the ratio to %q\n", machine(), figures, reference)
}

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
	return fmt.Sprintf("Linux %s, %d x %s%s, %s", release, runtime.NumCPU(), model, possibleCPUs(), runtime.Version())
}

// possibleCPUs returns a text with the number of CPUs for which the kernel reserves memory, or "" if the machine has
// exactly this number. The cost of creating a link depends on this number.
func possibleCPUs() string {
	b, _ := os.ReadFile("/sys/devices/system/cpu/possible") // "0-191"
	_, last, _ := strings.Cut(strings.TrimSpace(string(b)), "-")
	if n, err := strconv.Atoi(last); err == nil && n+1 != runtime.NumCPU() {
		return fmt.Sprintf(" of %d possible CPUs", n+1)
	}
	return ""
}

func (r *report) costText(d time.Duration) string {
	if r.icount {
		return strconv.FormatInt(d.Microseconds(), 10) // with -icount, a nanosecond is one instruction
	}
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 1, 64)
}

// header has the names of the columns. A column "x" has the ratio to the reference. For ADD and DEL, this is the ratio
// of medians, and for the CPU time the ratio of averages.
var header = []string{"chain", "c", "ADD min", "ADD p50", "ADD p90", "x", "DEL min", "DEL p50", "DEL p90", "x",
	"CPU ADD+DEL", "x"}

func (r *report) table() table.Table {
	t := table.Table{header}
	for _, s := range r.subjects {
		row := []string{s.label, strconv.Itoa(s.callsAtOnce)}
		to := cmp.Or(s.reference, &subject{})
		for _, verb := range [][2][]sample{{s.add, to.add}, {s.del, to.del}} {
			w := walls(verb[0])
			row = append(row, r.costText(quantile(w, 0)), r.costText(quantile(w, 0.5)), r.costText(quantile(w, 0.9)),
				ratio(quantile(w, 0.5), quantile(walls(verb[1]), 0.5)))
		}
		t = append(t, append(row, r.costText(s.cpu()), ratio(s.cpu(), to.cpu())))
	}
	return t
}

func (r *report) pluginTable(s *subject) table.Table {
	t := table.Table{{"plugin", "ADD p50", "CPU", "DEL p50", "CPU"}}
	add, del := byPlugin(s.add), byPlugin(s.del)
	for _, p := range s.list.Plugins {
		name := p.Network.Type
		t = append(t, []string{name,
			r.costText(quantile(walls(add[name]), 0.5)), r.costText(mean(add[name])),
			r.costText(quantile(walls(del[name]), 0.5)), r.costText(mean(del[name]))})
	}
	return t
}
