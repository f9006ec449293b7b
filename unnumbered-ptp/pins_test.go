// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// bpffs mounts the BPF file system. It returns a function that lists our files there.
func bpffs(t *testing.T) (kept func() []string) {
	const dir = "/sys/fs/bpf"
	must(t, unix.Mount("bpf", dir, "bpf", unix.MS_RELATIME, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	return func() []string {
		files, _ := filepath.Glob(dir + "/cni_ipvlan_vpc_k8s:*")
		return files
	}
}

// TestPinsUnused: no ADD has opened some pinned programs for a week, because they are of another release. The command
// of cni-gc.service deletes them. It keeps files that ADDs open, however old they are, and files of other programs.
func TestPinsUnused(t *testing.T) {
	f := newFabric(t)
	kept := bpffs(t)
	unit, err := os.ReadFile("../systemd/system/cni-gc.service")
	must(t, err)
	line := regexp.MustCompile(`(?m)^ExecStartPre=-\+(.*)$`).FindSubmatch(unit)
	if line == nil {
		t.Fatal("cni-gc.service gives up nothing")
	}
	words := strings.Fields(string(line[1]))
	clean := func() { must(t, exec.Command(words[0], words[1:]...).Run()) }
	added := func(name, addr string, block bool) *pod {
		p := f.configured(f.pod(name, addr), func(c *ptp.Config) { c.BlockInstanceMetadata = &block })
		must(t, f.ADD(p))
		return p
	}
	p := added("pod1", pod1Addr, false)
	shared := kept()
	gone := added("pod2", pod2Addr, true)
	all := kept()
	if len(all) != len(shared)+1 {
		t.Fatalf("%q are kept, and with another program %q", shared, all)
	}
	must(t, f.DEL(gone))
	clean()
	if d := cmp.Diff(all, kept()); d != "" {
		t.Errorf("it has given up what is young (-all +kept):\n%s", d)
	}
	const others = "/sys/fs/bpf/others"
	must(t, os.Symlink("nowhere", others))
	for _, file := range append(kept(), others) {
		long := unix.NsecToTimespec(time.Now().Add(-8 * 24 * time.Hour).UnixNano())
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, file, []unix.Timespec{long, long}, unix.AT_SYMLINK_NOFOLLOW))
	}
	q := added("pod3", "10.0.1.52", false)
	clean()
	if d := cmp.Diff(shared, kept()); d != "" {
		t.Errorf("-what the last pod has asked for +kept:\n%s", d)
	}
	if _, err := os.Lstat(others); err != nil {
		t.Error(err)
	}
	must(t, f.CHECK(p))
	must(t, f.CHECK(q))
}

// TestPinsLost deletes each combination of the pinned files that pods share. The two programs of the next pod must
// still share their maps. Otherwise no call to a Service gets an answer.
func TestPinsLost(t *testing.T) {
	f := newFabric(t)
	kept := bpffs(t)
	f.add(f.node, kubeProxy("tcp4"))
	serve(t, f.other, ":8080")
	pods := 0
	next := func(name string) {
		pods++
		addr := fmt.Sprint("10.0.1.", 48+pods%16)
		t.Run(name, func(t *testing.T) {
			f := &fabric{t, f.router, f.node, f.other}
			p := f.pod(addr, addr)
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			if seen, err := call(p.NS, "tcp4", "172.20.0.10:80"); err != nil || seen != addr {
				t.Errorf("the service sees %q; %v", seen, err)
			}
		})
	}
	for some := range 1 << 4 {
		f.bare()
		next("all")
		all := kept()
		if len(all) != 4 {
			t.Fatalf("%q are kept, want two maps and two programs", all)
		}
		for i, file := range all {
			if some>>i&1 != 0 {
				must(t, os.Remove(file))
			}
		}
		next(fmt.Sprintf("without %04b", some))
	}
}
