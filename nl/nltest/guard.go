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

// A Guard runs the tests of a package. It fails if the tests leave behind a namespace, a thread in another namespace, a
// file descriptor or a process. It also fails if the tests add a line to the Dump of the test process's own namespace.
//
//	func TestMain(m *testing.M) { os.Exit(nltest.Guard{M: m}.Run()) }
type Guard struct {
	*testing.M
	Patience time.Duration // how long Run waits for leftovers, such as threads, to end; 0: a minute
}

// Run runs the tests, and returns the exit status for os.Exit.
func (g Guard) Run() int {
	openPoller()
	before := countTraces()
	status := g.M.Run()
	if left := listLeftovers(before, cmp.Or(g.Patience, time.Minute)); len(left) > 0 && status == 0 {
		fmt.Fprintf(os.Stderr, "the tests left behind:\n\t%s\n", strings.Join(left, "\n\t"))
		status = 1
	}
	return status
}

// openPoller makes Go's runtime open its poller now. If the runtime opened the poller during a test, the poller's file
// descriptor could count as left behind by a test.
func openPoller() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

// listLeftovers lists what countTraces finds now, but did not find before. Threads, connections and namespaces take
// time to end, so listLeftovers waits for them, but no longer than patience.
func listLeftovers(before map[string]int, patience time.Duration) (left []string) {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		left = nil
		after := countTraces()
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

// countTraces counts the things that tests may leave behind. The keys are descriptions of these things.
func countTraces() map[string]int {
	found := map[string]int{}
	for _, path := range mountedNamespaces() {
		found["namespace "+path]++
	}
	for _, target := range linkTargets("/proc/self/fd/*") {
		found["descriptor of "+target]++ // target is the path of a file, or the number of a socket or pipe
	}
	home, _ := os.Readlink("/proc/thread-self/ns/net")
	for _, target := range linkTargets("/proc/self/task/*/ns/net") {
		if target != home {
			found["thread in "+target]++
		}
	}
	for _, name := range childNames() {
		found["process "+name]++
	}
	for _, line := range dumpOwn() {
		// ignore these links: the kernel makes them when it loads the modules of tunnels for a test
		if !strings.HasPrefix(line, "ip link add tunl0 ") && !strings.HasPrefix(line, "ip link add ip6tnl0 ") {
			found[line]++
		}
	}
	return found
}

func linkTargets(pattern string) (all []string) {
	paths, _ := filepath.Glob(pattern)
	for _, p := range paths {
		if target, err := os.Readlink(p); err == nil {
			all = append(all, target)
		}
	}
	return all
}

func childNames() (names []string) {
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

// dumpOwn returns the dump of the namespace of this process, or nil if this process cannot open the namespace.
func dumpOwn() []string {
	n, err := nl.Node()
	if err != nil {
		return nil
	}
	defer n.Close()
	lines, _ := dumpLines(n)
	return lines
}
