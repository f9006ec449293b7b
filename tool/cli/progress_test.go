// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestWorking: the last line of a screen says what is done and for how long. Other lines replace it, and nothing of it
// stays. In a log, there is no such line.
func TestWorking(t *testing.T) {
	line := erase + Name + ": detach eni-1: "
	for _, test := range []struct {
		screen bool
		want   string
	}{
		{true, line + "0s" + line + "1s" + erase + "a line\n" + "another\n" + line + "2s" + erase + "after\n"},
		{false, "a line\nanother\nafter\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			term := &terminal{w: &b, screen: test.screen}
			stop := term.working("detach eni-1")
			time.Sleep(1500 * time.Millisecond) // of the test's own clock
			fmt.Fprintln(term, "a line")
			fmt.Fprintln(term, "another")
			time.Sleep(time.Second)
			stop()
			fmt.Fprintln(term, "after")
			if diff := cmp.Diff(test.want, b.String()); diff != "" {
				t.Errorf("screen %v: -want +got\n%s", test.screen, diff)
			}
		})
	}
}

// TestTerminal tells a pipe from a screen.
func TestTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if newTerminal(w).screen {
		t.Error("a pipe is no screen")
	}
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pty.Close()
	if !newTerminal(pty).screen {
		t.Error("a terminal is a screen")
	}
}
