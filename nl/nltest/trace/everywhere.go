// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

// Step is the value N of the flag -step: a test kills the program only at every N-th of the system calls that the test
// counts (see [Everywhere]). The command "make test-kill" sets the flag to 1.
var Step = flag.Int("step", 4, "kill after only one of `N` system calls. If a command makes many calls of "+
	"services, kill at only one of N of these calls")

var everyCall = flag.Bool("trace.every", false,
	"kill after every system call, not only after those that may leave something changed")

// Everywhere runs a program several times, and kills the program in each run. In the first run, Everywhere kills the
// program after the first counted system call. In each further run, the program makes [Step] more counted calls than in
// the run before, and then Everywhere kills the program. Some runs make fewer calls than others. So Everywhere stops
// only when the program has ended by itself in three runs in a row. Everywhere counts only the calls that [Lasting]
// names, unless the flag -trace.every is set.
//
// Each run is a subtest that calls runTrace. runTrace must prepare namespaces and files, run the Trace, and check what
// the program has left behind. Everywhere returns the number of runs in which it killed the program.
func Everywhere(t *testing.T, command string, runTrace func(*testing.T, *Trace)) (points int) {
	t.Helper()
	counts := Lasting
	if *everyCall {
		counts = Name
	}
	for n, alive := 1, 0; alive < 3; n += *Step {
		tr := &Trace{Counts: counts, Every: *everyCall, Kill: n, After: true}
		t.Run(fmt.Sprint(command, " ", n), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("the program was killed after the last of these calls:\n\t%s", strings.Join(tr.Seen, "\n\t"))
				}
			}()
			runTrace(t, tr)
		})
		alive++
		if tr.killed {
			points, alive = points+1, 0
		}
	}
	return points
}
