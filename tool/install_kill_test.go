// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
)

// A site is a node's root directory, with an image to install there.
type site struct {
	*testing.T
	root, image, conflist string
}

// newSite makes the image of a release, and a node that has systemd and no files of ours.
func newSite(t *testing.T, release string) site {
	t.Helper()
	s := site{t, t.TempDir(), t.TempDir(), ""}
	s.write(filepath.Join(s.root, "usr/lib/systemd/systemd"), "")
	s.release(release)
	return s
}

// release replaces the image by the image of another release, which has another conflist.
func (s *site) release(release string) {
	s.Helper()
	for _, p := range programs {
		s.write(filepath.Join(s.image, p), p+" "+release)
	}
	s.write(filepath.Join(s.image, "usr/lib/systemd/system/cni-gc.timer"), "# "+release+
		"\n[Install]\nWantedBy=timers.target\n")
	s.conflist = filepath.Join(s.image, "10-pods.conflist")
	s.write(s.conflist, fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "cni-ipvlan-vpc-k8s", "secGroupIds": ["sg-%s"], "hostInterface": "eth0", "containerInterface": "eth1"}]}`, release))
}

// programs are the programs of the image. The runtime starts the first program.
var programs = []string{
	"opt/cni/bin/cni-ipvlan-vpc-k8s", "opt/cni/bin/cni-ipvlan-vpc-k8s-grow", "opt/cni/bin/cni-ipvlan-vpc-k8s-ipam",
	"opt/cni/bin/cni-ipvlan-vpc-k8s-ipvlan",
	"opt/cni/bin/cni-ipvlan-vpc-k8s-unnumbered-ptp", "opt/cni/bin/cni-ipvlan-vpc-k8s-egress",
	"usr/bin/cni-ipvlan-vpc-k8s-tool", "usr/bin/cni-ipvlan-vpc-k8s-links",
}

func (s site) write(path, text string) {
	s.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
		s.Fatal(err)
	}
}

// command returns the tool's command install for this site.
func (s site) command(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", append([]string{"install", "--root", s.root, "--from", s.image, "--enable",
		"cni-gc.timer"}, args...)...)
	c.Args[0] = tool.Name
	c.Env = append(os.Environ(), "CNI_IPVLAN_VPC_STATE_DIR=", "GORACE=atexit_sleep_ms=0")
	return c
}

func (s site) install()   { s.Helper(); s.run("--conflist", s.conflist) }
func (s site) uninstall() { s.Helper(); s.run("--uninstall") }

func (s site) run(args ...string) {
	s.Helper()
	if out, err := s.command(args...).CombinedOutput(); err != nil {
		s.Fatalf("install %q: %v\n%s", args, err, out)
	}
}

// files returns the contents of the node's files, except the lock. The keys are the paths.
func (s site) files() map[string]string {
	s.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, s.root+"/")
		if err != nil || d.IsDir() || strings.HasPrefix(name, "run/") {
			return err
		}
		if d.Type() == fs.ModeSymlink {
			all[name], err = os.Readlink(path)
			return err
		}
		text, err := os.ReadFile(path)
		all[name] = string(text)
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// TestInstallKillEverywhere kills an upgrade and a removal after each system call that may leave something behind.
// After a kill, each file that runtimes read must be complete, and from one of the two releases. The new conflist may
// exist only with the new programs. The next run must finish the work.
func TestInstallKillEverywhere(t *testing.T) {
	nltest.Need(t, "root")
	before, after := newSite(t, "1"), newSite(t, "2")
	bare := before.files()
	before.install()
	after.install()
	first, second := before.files(), after.files()
	// Besides the programs, install writes four files: the alias, a unit, its symlink, and the conflist.
	if cmp.Equal(first, second) || len(second) != len(bare)+len(programs)+4 {
		t.Fatalf("two releases on a node: %v", second)
	}
	points := trace.Everywhere(t, "install", func(t *testing.T, tr *trace.Trace) {
		s := newSite(t, "1")
		s.install()
		s.release("2")
		s.killed(tr, "--conflist", s.conflist)
		s.whole(first, second)
		s.install()
		if d := cmp.Diff(second, s.files()); d != "" {
			t.Errorf("the next run (-want +got):\n%s", d)
		}
	})
	t.Logf("install was killed at %d points", points)
	if least := 4 * len(programs) / *trace.Step; points < least { // for each program: create, write, sync and rename
		t.Errorf("install was killed at %d points, want at least %d", points, least)
	}
	trace.Everywhere(t, "a conflist with another name", func(t *testing.T, tr *trace.Trace) {
		const dir, name = "etc/cni/net.d/", "05-pods.conflist"
		s := newSite(t, "1")
		s.install()
		text := first[dir+"10-pods.conflist"]
		s.conflist = filepath.Join(s.image, name)
		s.write(s.conflist, text)
		s.killed(tr, "--conflist", s.conflist)
		if now := s.files(); now[dir+name] != text && now[dir+"10-pods.conflist"] != text {
			t.Errorf("the node has no whole conflist: %v", now)
		}
		s.install()
		want := maps.Clone(first)
		delete(want, dir+"10-pods.conflist")
		want[dir+name] = text
		if d := cmp.Diff(want, s.files()); d != "" {
			t.Errorf("the next run (-want +got):\n%s", d)
		}
	})
	points = trace.Everywhere(t, "uninstall", func(t *testing.T, tr *trace.Trace) {
		s := newSite(t, "1")
		s.install()
		s.killed(tr, "--uninstall")
		s.whole(first, bare)
		s.uninstall()
		if d := cmp.Diff(bare, s.files()); d != "" {
			t.Errorf("the next run (-want +got):\n%s", d)
		}
	})
	t.Logf("uninstall was killed at %d points", points)
	if points < len(programs) / *trace.Step {
		t.Errorf("uninstall was killed at %d points", points)
	}
}

// killed runs the command until the trace kills it.
func (s site) killed(tr *trace.Trace, args ...string) {
	s.Helper()
	c := s.command(args...)
	var out bytes.Buffer
	c.Stdout = &out
	if status, err := tr.Run(c); err != nil || status.Exited() && status.ExitStatus() != 0 {
		s.Fatalf("status %v, %v\n%s", status, err, &out)
	}
}

// whole checks that each file of the node has its old or its new contents, and that the node has the programs of its
// conflist.
func (s site) whole(before, after map[string]string) {
	s.Helper()
	now := s.files()
	for path, text := range now {
		if text != before[path] && text != after[path] && !strings.HasSuffix(path, ".new") {
			s.Errorf("%s is %q, want %q or %q", path, text, before[path], after[path])
		}
	}
	const conflist = "etc/cni/net.d/10-pods.conflist"
	for path, text := range now {
		old := text == before[path] && text != after[path]
		if now[conflist] == after[conflist] && after[conflist] != "" && old {
			s.Errorf("the conflist is new, and %s is old", path)
		}
		if _, ok := now["opt/cni/bin/"+filepath.Base(path)]; now[conflist] != "" &&
			strings.HasPrefix(path, "opt/cni/bin/") && !ok {
			s.Errorf("there is a conflist without %s", path)
		}
	}
}

// TestInstallDuringADDs installs two releases in turn, with two processes at once. Meanwhile, a runtime starts the
// plugin again and again. Each start must succeed, with a complete program of one release.
func TestInstallDuringADDs(t *testing.T) {
	nltest.Need(t, "root")
	s := newSite(t, "1")
	plugin := func(release string) {
		s.write(filepath.Join(s.image, programs[0]), "#!/bin/sh\necho release "+release+"\n# "+
			strings.Repeat(release, 1<<20)+"\n")
	}
	plugin("1")
	s.install()
	done := make(chan struct{})
	var runtime sync.WaitGroup
	starts := 0
	runtime.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			out, err := exec.Command(filepath.Join(s.root, programs[0])).CombinedOutput()
			if text := string(out); err != nil || text != "release 1\n" && text != "release 2\n" {
				t.Errorf("the plugin: %q, %v", text, err)
				return
			}
			starts++
		}
	})
	for i := range 10 {
		plugin(fmt.Sprint(1 + i%2))
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if out, err := s.command("--conflist", s.conflist).CombinedOutput(); err != nil {
					t.Errorf("install: %v\n%s", err, out)
				}
			})
		}
		both.Wait()
	}
	close(done)
	runtime.Wait()
	if t.Logf("the plugin was started %d times", starts); starts < 2 {
		t.Errorf("the plugin was started %d times", starts)
	}
}
