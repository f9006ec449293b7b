// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

// Step thins out what is alike. make test-kill tries all.
var Step = flag.Int("step", 4, "kill after one of so many system calls, and at one of so many calls of services "+
	"where a command makes many")

var every = flag.Bool("trace.every", false,
	"kill after every system call, not only after those that may leave something changed")

// Everywhere has a program killed after its first system call, after the next one that is [Step] calls later, and so
// on. Everywhere stops when the program has come to its end alive three times: a run may make fewer calls than another.
// Only those calls count that may leave something changed, unless the flag -trace.every is given.
//
// For each, strike prepares the world, runs the trace, and looks at what is left. The
// subtest bears the number of the call. Everywhere returns how often the program was
// killed.
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
					t.Logf("it was killed after the last of\n\t%s", strings.Join(tr.Seen, "\n\t"))
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
