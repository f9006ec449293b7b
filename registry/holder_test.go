// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestHolder stops a process that holds the lock of the registry. Another process gives up waiting for the lock. The
// error of this second process must name the stopped process, and say what to do.
func TestHolder(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil {
		t.Fatal(err) // util-linux is essential on Debian
	}
	r, err := Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Change(t.Context(), func(*State) {}); err != nil {
		t.Fatal(err)
	}
	if h, ok := r.Holder(); ok {
		t.Errorf("%v, but no process holds the lock", h)
	}
	pid := holdStopped(t, r.dir)
	waiters := waitingFor(t, r, 2)
	locks, err := Locks(r.dir)
	if err != nil || len(locks) != 1 || locks[0].PID != pid || locks[0].Waiting != 2 || !locks[0].Stopped {
		t.Errorf("locks %+v, %v, want one of process %d for which 2 wait", locks, err, pid)
	}
	for _, end := range waiters {
		end()
	}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	err = r.Change(given, func(*State) { t.Error("changed under another process's lock") })
	want := fmt.Sprintf("process %d (sh, stopped) holds the lock: if it hangs, end it (kill -9 %d), and the "+
		"kernel releases the lock", pid, pid)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if h, ok := r.Holder(); !ok || h.PID != pid || !h.Stopped {
		t.Errorf("holder %+v, %v, want process %d", h, ok, pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := r.Change(t.Context(), func(*State) {}); err != nil {
		t.Errorf("after the end of the process: %v", err)
	}
}

// waitingFor starts n processes that wait for the lock of the registry. Each returned function ends one of them.
func waitingFor(t *testing.T, r *Registry, n int) (ends []func()) {
	t.Helper()
	for range n {
		c := exec.Command("flock", r.dir, "true")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, func() { c.Process.Kill(); c.Wait() })
	}
	for {
		locks, err := Locks(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(locks) > 0 && locks[0].Waiting == n {
			return ends
		}
	}
}

// holdStopped locks a file in a process, stops the process, and returns its ID.
func holdStopped(t *testing.T, file string) int {
	t.Helper()
	c := exec.Command("flock", "--no-fork", file, "sh", "-c", "echo locked; kill -STOP $$; exec sleep 60")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("%q, %v", line, err)
	}
	for {
		if _, stopped := processStatus(c.Process.Pid); stopped {
			return c.Process.Pid
		}
	}
}
