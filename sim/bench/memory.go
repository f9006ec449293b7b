// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

// kubeletPods is kubelet's default for the number of pods on a node.
const kubeletPods = 110

// measureMemory measures how much memory ADDs take: one ADD alone, and kubeletPods ADDs at once.
func measureMemory(ctx context.Context, o options, w io.Writer) error {
	world, err := newWorld(o.nodeSize())
	if err != nil {
		return err
	}
	return errors.Join(world.measureMemory(ctx, o, w), world.close())
}

func (w *world) measureMemory(ctx context.Context, o options, out io.Writer) error {
	n, err := w.newNode("node")
	if err != nil {
		return err
	}
	r := &report{}
	chains, err := n.installedChains(o, r)
	if err != nil {
		return err
	}
	t := table.Table{{"KiB", "processes", "peak RSS", "x", "anonymous", "x",
		fmt.Sprintf("%d: peak RSS", kubeletPods), "x", "cgroup", "x"}}
	var all []footprint
	for _, c := range chains {
		if !slices.Contains([]string{ours, byVeth, threePlugins, reference, noopChain}, c.name) {
			continue
		}
		f, err := n.measureFootprint(ctx, c, o)
		if err != nil {
			return err
		}
		all = append(all, f...)
	}
	at := slices.IndexFunc(all, func(f footprint) bool { return f.name == reference })
	if at < 0 {
		return fmt.Errorf("%s is missing: %v", reference, r.notes)
	}
	for _, f := range all {
		t = append(t, f.tableRow(all[at]))
	}
	_, err = fmt.Fprintf(out, "%s\"peak RSS\" and \"anonymous\" are medians of %d ADDs. \"%d: peak RSS\" and "+
		"\"cgroup\" are one measurement of %[3]d ADDs at once. A row \"asking EC2\" is one ADD.\n\n%[4]s",
		title("memory in KiB", reference), o.rounds, kubeletPods, t)
	return errors.Join(err, checkMemory(t))
}

// checkMemory returns an error if an ADD of one of our chains takes more memory than an ADD of the reference.
func checkMemory(t table.Table) error {
	return checkRatios(t, reference, 1, "peak RSS", "anonymous", fmt.Sprintf("%d: peak RSS", kubeletPods), "cgroup")
}

// A footprint is the memory of the ADDs of a chain, in KiB.
type footprint struct {
	name      string
	processes int
	// The sums over the processes of one ADD: peak resident sets, and anonymous memory (Go's heap, stacks and
	// variables).
	peak, anonymous int
	// Of kubeletPods ADDs at once: "peaks" is the sum of the peak resident sets, and "group" is the peak memory of a
	// control group with all processes. A page that several processes share counts once for each process in "peaks",
	// and once in "group".
	peaks, group int
}

// tableRow returns the row of the table for a footprint, with ratios to the baseline.
func (f footprint) tableRow(baseline footprint) []string {
	x := func(a, b int) string {
		if a == 0 || b == 0 {
			return ""
		}
		return strconv.FormatFloat(float64(a)/float64(b), 'f', 2, 64)
	}
	row := []string{f.name, fmt.Sprint(f.processes), fmt.Sprint(f.peak), x(f.peak, baseline.peak),
		fmt.Sprint(f.anonymous), x(f.anonymous, baseline.anonymous), fmt.Sprint(f.peaks), x(f.peaks, baseline.peaks),
		fmt.Sprint(f.group), x(f.group, baseline.group)}
	for i, cell := range row {
		if cell == "0" {
			row[i] = ""
		}
	}
	return row
}

// measureFootprint measures the footprint of a chain. If the chain's first ADD on the node asks EC2, the result also
// has the footprint of this ADD.
func (n *node) measureFootprint(ctx context.Context, c *chain, o options) ([]footprint, error) {
	cold, err := n.measureTraced(ctx, c, o, 1)
	if err != nil {
		return nil, err
	}
	if err := n.prepareChains(ctx, []*chain{c}, kubeletPods); err != nil {
		return nil, err
	}
	f := footprint{name: c.name}
	var peaks, anonymous []int
	for range o.rounds {
		one, err := n.measureTraced(ctx, c, o, 1)
		if err != nil {
			return nil, err
		}
		f.processes = one.processes
		peaks, anonymous = append(peaks, one.peak), append(anonymous, one.anonymous)
	}
	f.peak, f.anonymous = medianInt(peaks), medianInt(anonymous)
	together, err := n.measureTraced(ctx, c, o, kubeletPods)
	if err != nil {
		return nil, err
	}
	f.peaks = together.peak
	if f.group, err = n.cgroupPeak(ctx, c, kubeletPods); err != nil {
		return nil, err
	}
	if cold.processes > f.processes {
		cold.name = c.name + ", asking EC2"
		return []footprint{f, cold}, nil
	}
	return []footprint{f}, nil
}

func medianInt(all []int) int {
	slices.Sort(all)
	return all[len(all)/2]
}

// measureTraced executes addCount ADDs at the same time, and returns the sums of the memory that our program "peak" has
// measured.
func (n *node) measureTraced(ctx context.Context, c *chain, o options, addCount int) (f footprint, err error) {
	dir, err := os.MkdirTemp(n.dir, "peak")
	if err != nil {
		return f, err
	}
	out := filepath.Join(dir, "out")
	peak, err := filepath.Abs(filepath.Join(o.bin, "peak"))
	if err != nil {
		return f, err
	}
	const we = "cni-ipvlan-vpc-k8s"
	for _, name := range []string{we, we + "-grow", we + "-ipam", we + "-ipvlan", we + "-unnumbered-ptp", "ptp",
		"host-local", "noop"} {
		if err := os.Symlink(peak, filepath.Join(dir, name)); err != nil {
			return f, err
		}
	}
	by := *c
	by.path = []string{dir}
	env := []string{"PEAK_PATH=" + strings.Join(c.path, string(filepath.ListSeparator)), "PEAK_OUT=" + out}
	if err := n.addAndDel(ctx, &by, addCount, func() *executor {
		return &executor{env: slices.Concat(n.env, env)}
	}, func() error { f, err = readFootprint(out); return err }); err != nil {
		return f, err
	}
	return f, os.RemoveAll(dir)
}

func readFootprint(file string) (f footprint, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return f, err
	}
	for line := range strings.Lines(string(b)) {
		var name string
		var peak, anonymous int
		if _, err := fmt.Sscan(line, &name, &peak, &anonymous); err != nil {
			return f, fmt.Errorf("%q: %w", line, err)
		}
		f.processes, f.peak, f.anonymous = f.processes+1, f.peak+peak, f.anonymous+anonymous
	}
	return f, nil
}

// addAndDel executes addCount ADDs at once, calls afterADDs, and then executes the DELs. Each call has an executor of
// its own.
func (n *node) addAndDel(
	ctx context.Context, c *chain, addCount int, newExecutor func() *executor, afterADDs func() error,
) error {
	ps, err := n.newPods(addCount)
	if err != nil {
		return err
	}
	errs := make([]error, addCount)
	var all sync.WaitGroup
	for i, p := range ps {
		all.Go(func() { _, errs[i] = c.execute(ctx, "ADD", p, newExecutor()) })
	}
	all.Wait()
	if err := errors.Join(append(errs, afterADDs())...); err != nil {
		return err
	}
	for _, p := range ps {
		if _, err := c.execute(ctx, "DEL", p, newExecutor()); err != nil {
			return err
		}
	}
	return errors.Join(ps.close(), settle(ctx, addCount))
}

// cgroupPeak executes addCount ADDs at once in a control group, and returns the peak of the group's memory in KiB.
func (n *node) cgroupPeak(ctx context.Context, c *chain, addCount int) (peak int, err error) {
	const root = "/sys/fs/cgroup"
	group, err := os.MkdirTemp(root, "bench")
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		return 0, err
	}
	fd, err := unix.Open(group, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	in := func() *executor {
		return &executor{env: n.env, attr: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}}
	}
	err = n.addAndDel(ctx, c, addCount, in, func() error {
		b, err := os.ReadFile(filepath.Join(group, "memory.peak"))
		if err == nil {
			peak, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		return err
	})
	return peak >> 10, errors.Join(err, os.Remove(group))
}
