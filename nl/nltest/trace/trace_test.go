// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
)

var callNames = []string{"a", "b", "c"}

// If TRACE_TEST is set, the test binary is the traced program. It makes directories in the directory TRACE_TEST, each
// on its own thread.
func TestMain(m *testing.M) {
	dir := os.Getenv("TRACE_TEST")
	if dir == "" {
		os.Exit(m.Run())
	}
	for _, name := range callNames {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			done <- os.Mkdir(filepath.Join(dir, name), 0o700)
		}()
		if err := <-done; err != nil {
			fmt.Println(err.(*os.PathError).Err)
		}
	}
}

func mkdirs(c trace.Call) string {
	if c.Nr == unix.SYS_MKDIRAT {
		return filepath.Base(c.Text(1))
	}
	return ""
}

// run traces the program, and returns the directories that it made.
func run(t *testing.T, tr *trace.Trace) (made []string, status syscall.WaitStatus, out string) {
	t.Helper()
	dir := t.TempDir()
	var stdout bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stdout = append(os.Environ(), "TRACE_TEST="+dir), &stdout
	status, err := tr.Run(cmd)
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		made = append(made, filepath.Base(path))
	}
	return made, status, stdout.String()
}

func TestRun(t *testing.T) {
	t.Run("filtered", func(t *testing.T) { testRun(t, false) })
	t.Run("every", func(t *testing.T) { testRun(t, true) })
}

func testRun(t *testing.T, every bool) {
	for _, c := range []struct {
		trace.Trace
		made []string
		out  string
	}{
		{trace.Trace{}, callNames, ""},
		{trace.Trace{Kill: 1}, nil, ""},
		{trace.Trace{Kill: 2}, callNames[:1], ""},
		{trace.Trace{Kill: 2, After: true}, callNames[:2], ""},
		{trace.Trace{Kill: 4}, callNames, ""},
		{trace.Trace{Kill: 2, Errno: syscall.ENOSPC}, []string{"a", "c"}, "no space left on device\n"},
	} {
		tr := c.Trace
		tr.Counts, tr.Every = mkdirs, every
		made, status, out := run(t, &tr)
		killed := c.Kill > 0 && c.Kill < 4 && c.Errno == 0
		if d := cmp.Diff(c.made, made); d != "" || out != c.out || status.Signaled() != killed {
			t.Errorf("%d, after %v, %v: made %v, printed %q, status %x", c.Kill, c.After, c.Errno, made, out, status)
		}
		if want := callNames[:len(tr.Seen)]; !killed && len(want) != 3 || !slices.Equal(tr.Seen, want) {
			t.Errorf("seen %v", tr.Seen)
		}
	}
}

// TestEverywhere: Everywhere counts the calls that make the three directories, and no other call of the program.
func TestEverywhere(t *testing.T) {
	was := *trace.Step
	defer func() { *trace.Step = was }()
	*trace.Step = 1
	var all [][]string
	points := trace.Everywhere(t, "mkdir", func(t *testing.T, tr *trace.Trace) {
		made, _, _ := run(t, tr)
		all = append(all, made)
	})
	want := [][]string{callNames[:1], callNames[:2], callNames, callNames, callNames, callNames}
	if d := cmp.Diff(want, all); d != "" || points != 3 {
		t.Errorf("%d points; -want +got\n%s", points, d)
	}
}

// TestEvery: with Every, the trace counts more calls, and each has its name.
func TestEvery(t *testing.T) {
	few, tr := &trace.Trace{Counts: trace.Name}, &trace.Trace{Counts: trace.Name, Every: true}
	run(t, few)
	run(t, tr)
	if len(tr.Seen) < 2*len(few.Seen) {
		t.Errorf("%d calls of %d", len(few.Seen), len(tr.Seen))
	}
	for _, want := range []string{"openat /", "close /"} {
		if !slices.ContainsFunc(tr.Seen, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("no %q among\n%s", want, strings.Join(tr.Seen, "\n"))
		}
	}
}

// TestBytes reads the bytes of an argument at the beginning of a call.
func TestBytes(t *testing.T) {
	var paths []string
	run(t, &trace.Trace{Counts: func(c trace.Call) string {
		if c.Nr != unix.SYS_MKDIRAT {
			return ""
		}
		b, err := c.Bytes(uintptr(c.Args[1]), len(c.Text(1)))
		if err != nil {
			t.Error(err)
		}
		paths = append(paths, filepath.Base(string(b)))
		return "mkdirat"
	}})
	if d := cmp.Diff(callNames, paths); d != "" {
		t.Errorf("paths: -want +got\n%s", d)
	}
}
