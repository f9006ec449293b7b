// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// counting is an environment variable with the path of a registry's directory. If it is set, the test binary counts
// commands there.
const counting = "REGISTRY_TEST_COUNTING"

// countsEach is the number of commands that each process counts.
const countsEach = 1000

// countOf returns the registry's counts of a command.
func countOf(t *testing.T, r *Registry, command, outcome string) Tally {
	t.Helper()
	all, err := Counts(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Command == command && c.Outcome == outcome {
			return c
		}
	}
	return Tally{}
}

func TestCount(t *testing.T) {
	r := open(t)
	if all, err := Counts(r.dir); all != nil || err != nil {
		t.Errorf("without a file: %v, %v", all, err)
	}
	Count(r.dir, "ADD", OK, 10*time.Millisecond)
	Count(r.dir, "ADD", OK, 11*time.Millisecond)
	Count(r.dir, "ADD", OK, time.Hour)
	Count(r.dir, "DEL", Failed, time.Second)
	Count(r.dir, "CHECK", OK, time.Second)
	Count(r.dir, "ADD", "no outcome", time.Second)
	Count(r.dir, "DEL", "no outcome", time.Second)
	c := countOf(t, r, "ADD", OK)
	if c.Total != 3 || c.Took != time.Hour+21*time.Millisecond || c.Within[0] != 1 || c.Within[1] != 2 ||
		c.Within[len(Bounds)-1] != 2 {
		t.Errorf("got %+v", c)
	}
	if c := countOf(t, r, "DEL", Failed); c.Total != 1 || c.Took != time.Second {
		t.Errorf("got %+v", c)
	}
	var total uint64
	all, err := Counts(r.dir)
	for _, c := range all {
		total += c.Total
	}
	if total != 4 || err != nil {
		t.Errorf("%d commands, %v", total, err)
	}
}

// TestCountProcesses: many processes count at once, and the test kills some of them. No count may be lost or
// half-written.
func TestCountProcesses(t *testing.T) {
	const processes = 12
	r := open(t)
	var children []*exec.Cmd
	for range processes {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), counting+"="+r.dir)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		children = append(children, c)
	}
	for countOf(t, r, "ADD", OK).Total == 0 {
		time.Sleep(time.Millisecond)
	}
	_ = children[0].Process.Kill() // the process may have ended already
	least := uint64(0)
	for _, c := range children {
		if c.Wait() == nil {
			least += countsEach
		}
	}
	c := countOf(t, r, "ADD", OK)
	if c.Total < least || c.Total > processes*countsEach || c.Took > time.Duration(c.Total)*time.Millisecond ||
		c.Took < time.Duration(c.Total-1)*time.Millisecond {
		t.Errorf("got %+v, want at least %d", c, least)
	}
}

// TestCountNowhere: the file of the counts cannot be used. No command may fail because of this.
func TestCountNowhere(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"directory": func(file string) error { return os.Mkdir(file, 0o700) },
		"pipe":      func(file string) error { return unix.Mkfifo(file, 0o600) },
		"symlink":   func(file string) error { return os.Symlink("/dev/zero", file) },
		"no registry": func(file string) error {
			return os.RemoveAll(filepath.Dir(file))
		},
	} {
		r := open(t)
		if err := spoil(filepath.Join(r.dir, countsFile)); err != nil {
			t.Fatal(err)
		}
		if Count(r.dir, "ADD", OK, time.Second); name == "no registry" && fileExists(r.dir) {
			t.Errorf("%s: a count has made %s", name, r.dir)
		}
	}
	r := open(t)
	if err := os.WriteFile(filepath.Join(r.dir, countsFile), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Counts(r.dir); err != nil {
		t.Errorf("a short file cannot be read: %v", err)
	}
	Count(r.dir, "DEL", Waited, time.Second)
	if c := countOf(t, r, "DEL", Waited); c.Total != 1 {
		t.Errorf("a short file does not count: %+v", c)
	}
}

// TestCountFullDisk counts a command in a file on a full tmpfs. The kernel has no memory for the file, and sends
// SIGBUS. The process must survive.
func TestCountFullDisk(t *testing.T) {
	nltest.Need(t, "root")
	r := open(t)
	if err := unix.Mount("tmpfs", r.dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(r.dir, unix.MNT_DETACH) }()
	full := filepath.Join(r.dir, "full")
	if err := os.WriteFile(full, []byte(strings.Repeat("x", 64<<10)), 0o600); err != nil {
		t.Fatal(err)
	}
	Count(r.dir, "ADD", OK, time.Second)
	if c := countOf(t, r, "ADD", OK); c.Total != 0 {
		t.Errorf("the disk is not full: %+v", c)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	Count(r.dir, "ADD", OK, time.Second)
	if c := countOf(t, r, "ADD", OK); c.Total != 1 {
		t.Errorf("got %+v", c)
	}
}
