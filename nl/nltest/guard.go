// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A Guard runs the tests of a package. It fails the run if the tests left behind a namespace, a thread in another
// namespace, a file descriptor or a process. It also fails the run if Dump shows something new in the namespace of the
// run itself.
//
//	func TestMain(m *testing.M) { os.Exit(nltest.Guard{M: m}.Run()) }
type Guard struct {
	*testing.M
	Patience time.Duration // how long Run waits for things that are ending; 0: a minute, which a busy machine may need
}

// Run runs the tests and returns the exit status.
func (g Guard) Run() int {
	warm()
	before := traces()
	status := g.M.Run()
	if left := leftover(before, cmp.Or(g.Patience, time.Minute)); len(left) > 0 && status == 0 {
		fmt.Fprintf(os.Stderr, "the tests left behind:\n\t%s\n", strings.Join(left, "\n\t"))
		status = 1
	}
	return status
}

// warm makes the runtime open its poller. The runtime opens the poller with the first pipe, and keeps it open.
func warm() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

// leftover lists the things that traces counts now and that are not in before. leftover waits for things that are
// ending: threads that end, connections that close, namespaces that the kernel removes.
func leftover(before map[string]int, patience time.Duration) (left []string) {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		left = nil
		after := traces()
		for what := range maps.Keys(after) {
			if more := after[what] - before[what]; more > 0 {
				left = append(left, fmt.Sprintf("%s (%d)", what, more))
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			slices.Sort(left)
			return left
		}
	}
}

// traces counts the things that tests may leave behind, each under a text that describes it.
func traces() map[string]int {
	found := map[string]int{}
	for _, path := range mounted() {
		found["namespace "+path]++
	}
	for _, target := range targets("/proc/self/fd/*") {
		found["descriptor of "+target]++ // no two sockets or pipes have the same target
	}
	home, _ := os.Readlink("/proc/thread-self/ns/net")
	for _, target := range targets("/proc/self/task/*/ns/net") {
		if target != home {
			found["thread in "+target]++
		}
	}
	for _, name := range children() {
		found["process "+name]++
	}
	for _, line := range own() {
		// these links come with the modules of tunnels
		if !strings.HasPrefix(line, "ip link add tunl0 ") && !strings.HasPrefix(line, "ip link add ip6tnl0 ") {
			found[line]++
		}
	}
	return found
}

// targets reads the symbolic links that match a pattern.
func targets(pattern string) (all []string) {
	paths, _ := filepath.Glob(pattern)
	for _, p := range paths {
		if target, err := os.Readlink(p); err == nil {
			all = append(all, target)
		}
	}
	return all
}

// children lists the names of the processes that this process has started.
func children() (names []string) {
	paths, _ := filepath.Glob("/proc/self/task/*/children")
	for _, p := range paths {
		pids, _ := os.ReadFile(p)
		for pid := range strings.FieldsSeq(string(pids)) {
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			names = append(names, strings.TrimSpace(string(name)))
		}
	}
	return names
}

// own returns the dump of the namespace of this process, or nil if the process may not open it.
func own() []string {
	n, err := nl.Node()
	if err != nil {
		return nil
	}
	defer n.Close()
	lines, _ := dump(n)
	return lines
}
