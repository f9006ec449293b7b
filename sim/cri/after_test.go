// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
)

// kills is a foreign plugin at the end of the chain. It kills the runtime after our ADD, before the runtime has
// recorded the result.
const kills = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}' ;;
ADD) kill -KILL $PPID ;;
esac
`

// killedAfterADD kills CRI-O after an ADD, before CRI-O has recorded the pod. After its restart, CRI-O does not know
// the pod, and leaves the pod's namespace mounted. GC ends the lease only after this namespace has gone.
func (s *server) killedAfterADD(t *testing.T) {
	leased := s.dieAfterADD(t)
	s.start(t)
	s.ready(t)
	if known := s.sandboxes(t); len(known) > 0 {
		t.Errorf("CRI-O knows the sandboxes %v", known)
	}
	if d := cmp.Diff(leased, s.leases(t)); d != "" {
		t.Errorf("the leases, while the namespace is there; -want +got\n%s", d)
	}
	s.stop(t)
	for _, netns := range leased {
		if err := errors.Join(syscall.Unmount(netns, 0), os.Remove(netns)); err != nil {
			t.Error(err)
		}
	}
	s.start(t)
	s.ready(t)
}

// releases is a flag. With the flag, TestJudgeContainerd also tries other releases of containerd. make judges builds a
// directory of programs for each release:
//
//	go test -exec "$PWD/nl/nltest/vm/exec" -run Containerd$ ./sim/cri -args -releases "$PWD/.cache/cri/releases"
var releases = flag.String("releases", "", "TestJudgeContainerd: the `directory` with further releases")

// TestJudgeContainerd kills containerd after an ADD, before containerd has recorded the result. After its restart,
// containerd knows the pod. Some releases call DEL when the test removes the pod, as kubelet does. For all other
// releases, doctor must report that containerd calls no DEL, and two collections, a minute apart, must end the lease.
func TestJudgeContainerd(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	dirs := []string{programDir}
	if *releases != "" {
		dirs = append(dirs, must(filepath.Glob(*releases+"/v*"))...)
	}
	for _, dir := range dirs {
		_, version := judge.Release(t, filepath.Join(dir, "containerd"))
		t.Run(version, func(t *testing.T) {
			_, number, _ := strings.Cut(version, " ")
			judge.Attr(t, "`containerd` "+number+", killed between an ADD and its record", version,
				"`dataPath` `ipvlan`")
			k := containerd
			k.release = must(filepath.Abs(dir))
			switch {
			case strings.Contains(version, " v1."):
				k.configure, k.peers = configureV1, []string{filepath.Join(programDir, "loopback")}
			case strings.Contains(version, " v2.1."), strings.Contains(version, " v2.2."):
				k.configure = configureV3
			}
			list := must(os.ReadFile("../../conflist-examples/10-cni-ipvlan-vpc-k8s.conflist"))
			s := newServer(t, k, newVPC(t, 1), map[string][]byte{shipped: changed(list, nil, object{"type": "kills"})})
			s.testForgets(t)
		})
	}
}

func (s *server) testForgets(t *testing.T) {
	leased := s.dieAfterADD(t)
	s.start(t)
	s.ready(t)
	said, _ := s.tool("doctor", "--check=runtime") // the tool fails if doctor finds something
	for _, id := range s.sandboxes(t) {
		if err := s.remove(id); err != nil {
			t.Error(err)
		}
	}
	left := s.leases(t)
	t.Run("doctor says what happens", func(t *testing.T) {
		forgets := strings.Contains(said, "it calls no DEL for the pod")
		if d := cmp.Diff(leased, left); (d == "") != forgets || !forgets && len(left) != 0 {
			t.Errorf("the leases were %v, and are %v; doctor:\n%s", leased, left, said)
		}
	})
	if len(left) == 0 {
		return
	}
	t.Run("collections end the lease", func(t *testing.T) {
		for _, wait := range []time.Duration{0, time.Minute} {
			time.Sleep(wait)
			if out, err := s.tool("registry-gc", "--free-after=15m"); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
		if left := s.leases(t); len(left) != 0 {
			t.Errorf("the leases %v are left", left)
		}
	})
}

// tool runs the tool on the node, where the runtime's programs are in PATH.
func (s *server) tool(args ...string) (string, error) {
	c := exec.Command(filepath.Join(s.plugins, "cni-ipvlan-vpc-k8s-tool"), args...)
	c.Env = s.env()
	var out []byte
	err := s.node.Do(func() (err error) { out, err = c.CombinedOutput(); return err })
	return string(out), err
}

// dieAfterADD makes the last plugin kill the runtime during the ADD of a new pod. It returns all leases of the node.
func (s *server) dieAfterADD(t *testing.T) map[netip.Addr]string {
	t.Helper()
	before := s.leases(t)
	if _, err := s.runPod("dies", nil); err == nil {
		t.Error("the runtime had an answer")
	}
	s.process.Wait() // Wait returns an error, because the process was killed
	s.process = nil
	after := s.leases(t)
	if len(after) != len(before)+s.families {
		t.Errorf("the leases are %v, and were %v", after, before)
	}
	return after
}

// leases returns the path of the pod's network namespace for each leased address of the node.
func (s *server) leases(t *testing.T) map[netip.Addr]string {
	t.Helper()
	state, err := must(registry.Open(s.node.StateDir)).View()
	if err != nil {
		t.Fatal(err)
	}
	all := map[netip.Addr]string{}
	for a, l := range state.Leases.All() {
		all[a] = l.NetNS
	}
	return all
}
