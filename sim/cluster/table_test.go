// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A table is the result of a run: a line for each scenario, and the measured figures.
type table struct {
	title  string
	lines  []string
	failed int
	began  time.Time
}

func (r *table) add(name string, ok bool, took time.Duration) {
	word := "ok"
	if !ok {
		word, r.failed = "FAILED", r.failed+1
	}
	r.lines = append(r.lines, fmt.Sprintf("%-36s %-6s %5.0f s", name, word, took.Seconds()))
}

// write writes the table to a file, or to standard output.
func (r *table) write(t *testing.T, file string, figures []string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%-36s %-6s %7s\n", r.title, "scenario", "", "time")
	for _, l := range append(r.lines, "") {
		fmt.Fprintln(&b, l)
	}
	for _, f := range figures {
		fmt.Fprintln(&b, f)
	}
	fmt.Fprintf(&b, "scenarios: %d of %d ok; whole run %.0f s; memory at the end %d MB\n", len(r.lines)-r.failed,
		len(r.lines), time.Since(r.began).Seconds(), usedMB(t))
	fmt.Print(b.String())
	if file != "" {
		check(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
}

// usedMB returns how much memory of this kernel is in use, including tmpfs, but not caches of files.
func usedMB(t *testing.T) int {
	t.Helper()
	f, err := os.Open("/proc/meminfo")
	check(t, err)
	defer f.Close()
	kB := map[string]int{}
	for s := bufio.NewScanner(f); s.Scan(); {
		var n int
		name, rest, _ := strings.Cut(s.Text(), ":")
		if _, err := fmt.Sscan(rest, &n); err == nil {
			kB[name] = n
		}
	}
	return (kB["MemTotal"] - kB["MemAvailable"]) / 1024
}

func release(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	check(t, unix.Uname(&u))
	return unix.ByteSliceToString(u.Release[:])
}
