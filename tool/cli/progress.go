// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal is where the tool writes its messages: the standard error of this process. The tool writes a line for each
// change in EC2. If standard error is a screen, the tool also shows a status line, which says what the command waits
// for. The next message replaces the status line.
type terminal struct {
	w      io.Writer
	screen bool // w is a screen, and not a file or a pipe

	mu    sync.Mutex
	shown bool // the status line is on the screen
}

func newTerminal(f *os.File) *terminal {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return &terminal{w: f, screen: err == nil}
}

// erase erases the current line of a screen (ECMA-48: carriage return, erase in line).
const erase = "\r\x1b[K"

// Write writes whole lines. If the status line is on the screen, Write erases it first.
func (t *terminal) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shown {
		t.shown = false
		b = append([]byte(erase), b...)
	}
	return t.w.Write(b)
}

// showStatus replaces the status line by text. If text is empty, showStatus only erases the status line.
func (t *terminal) showStatus(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shown || text != "" {
		fmt.Fprint(t.w, erase+text)
	}
	t.shown = text != ""
}

// Working shows what the command does at present, and since when, until the caller calls stop. If standard error is not
// a screen, it shows nothing.
func Working(what string) (stop func()) {
	m, ok := slog.Default().Handler().(messageHandler)
	if !ok {
		return func() {}
	}
	return m.t.working(what)
}

func (t *terminal) working(what string) (stop func()) {
	if !t.screen {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for start := time.Now(); ; {
			t.showStatus(fmt.Sprintf("%s: %s: %v", Name, what, time.Since(start).Truncate(time.Second)))
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		t.showStatus("")
	}
}
