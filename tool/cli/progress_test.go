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

// TestWorking checks the progress line on a terminal. The line says what the tool does, and how long this has taken so
// far. When the tool prints another line, the progress line disappears. A log has no progress line.
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
			time.Sleep(1500 * time.Millisecond) // the clock is that of the synctest bubble
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

// TestTerminal checks that a pipe does not count as a terminal.
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
