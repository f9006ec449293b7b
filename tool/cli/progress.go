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

// A terminal is standard error. Each change in the cloud is one line, in a log as on a screen. What the command waits
// for is the last line of a screen, and the next line overwrites it.
type terminal struct {
	w      io.Writer
	screen bool // a person looks at it

	mu    sync.Mutex
	shown bool // there is a last line
}

func newTerminal(f *os.File) *terminal {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return &terminal{w: f, screen: err == nil}
}

// erase takes the last line away (ECMA-48: carriage return, erase in line).
const erase = "\r\x1b[K"

// Write writes whole lines.
func (t *terminal) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shown {
		t.shown = false
		b = append([]byte(erase), b...)
	}
	return t.w.Write(b)
}

// show puts text in place of the last line; nothing, if it is empty.
func (t *terminal) show(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shown || text != "" {
		fmt.Fprint(t.w, erase+text)
	}
	t.shown = text != ""
}

// Working shows what the command does, and for how long, until it is told to stop.
func Working(what string) (stop func()) {
	m, ok := slog.Default().Handler().(messages)
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
			t.show(fmt.Sprintf("%s: %s: %v", Name, what, time.Since(start).Truncate(time.Second)))
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
		t.show("")
	}
}
