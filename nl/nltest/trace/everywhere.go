// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

// Step is the value N of the flag -step: a test kills the program at only one of N similar calls. make test-kill tries
// all calls.
var Step = flag.Int("step", 4, "kill after only one of `N` system calls, and, if a command makes many calls of "+
	"services, at only one of N of these")

var every = flag.Bool("trace.every", false,
	"kill after every system call, not only after those that may leave something changed")

// Everywhere runs a program several times, and kills it in each run. The first kill is after the first system call, and
// each further kill is [Step] calls later. Everywhere stops when the program has ended by itself in three runs in a
// row. One such run is not enough, because some runs make fewer calls than others. If the flag -trace.every is not
// given, only calls that may leave something changed count.
//
// In each run, strike prepares the namespaces and files, runs the trace, and checks what the program has left. Each run
// is a subtest with the number of the call in its name. Everywhere returns how often the program was killed.
func Everywhere(t *testing.T, command string, strike func(*testing.T, *Trace)) (points int) {
	t.Helper()
	counts := Lasting
	if *every {
		counts = Name
	}
	for n, alive := 1, 0; alive < 3; n += *Step {
		tr := &Trace{Counts: counts, Every: *every, Kill: n, After: true}
		t.Run(fmt.Sprint(command, " ", n), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("the program was killed after the last of these calls:\n\t%s", strings.Join(tr.Seen, "\n\t"))
				}
			}()
			strike(t, tr)
		})
		alive++
		if tr.killed {
			points, alive = points+1, 0
		}
	}
	return points
}
