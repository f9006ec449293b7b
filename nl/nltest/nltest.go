// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package nltest has namespaces for tests, and a kernel to run them on.
//
// NS makes a namespace, Shell runs a script in a namespace, and Dump prints what is in a namespace. Need skips a test
// if the machine lacks a feature. Guard fails a run whose tests left something behind. The scripts in the directory vm
// run a test binary unchanged. The scripts run the binary on this machine's kernel if the kernel has ipvlan, and
// otherwise in user-mode Linux or a virtual machine:
//
//	go test -exec "$PWD/nl/nltest/vm/exec" ./nl/...
//
// Nothing here is a fake: a test runs on a real kernel, or it does not run. The package knows what a namespace holds,
// but knows nothing of CNI or EC2.
package nltest

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

const dir = "/run/netns" // where ip-netns(8) looks for namespaces

// The main goroutine locks the first thread, so that no other goroutine runs on it. A goroutine that has changed its
// thread's namespace ends, and its thread ends with it. But the first thread cannot end: the first thread would stay in
// that namespace, and keep the namespace alive, as long as the process runs.
func init() { runtime.LockOSThread() }

// NS makes a network namespace with its loopback up, opens it under the given name and mounts it at path. The namespace
// and the mount end with the test.
func NS(t testing.TB, name string) (n *nl.NS, path string) {
	t.Helper()
	Need(t, "netns")
	path, err := create(name)
	if err != nil {
		t.Fatalf("make namespace %s: %v", name, err)
	}
	t.Cleanup(func() { Remove(t, path) })
	n, err = nl.Open(name, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close namespace %s: %v", name, err)
		}
	})
	if err := (nl.Wiring{{NS: n, Object: nl.Up{Dev: "lo"}}}).Add(); err != nil {
		t.Fatal(err)
	}
	return n, path
}

// Shell runs a script in a namespace, and returns its output. The test fails if a command of the script fails.
func Shell(t testing.TB, n *nl.NS, script string) string {
	t.Helper()
	var out []byte
	if err := n.Do(func() (err error) {
		out, err = exec.Command("sh", "-ec", script).CombinedOutput()
		return err
	}); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// Without runs f on this thread without a capability.
func Without(t testing.TB, capability int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData // 64 bits
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Capget(&header, &all[0]))
	few := all
	few[capability/32].Effective &^= 1 << (capability % 32)
	must(unix.Capset(&header, &few[0]))
	defer func() { must(unix.Capset(&header, &all[0])) }()
	f()
}

// Remove removes the file of a namespace before its test ends. A container runtime may also remove this file before it
// calls DEL. The kernel keeps the namespace as long as a process is in it, but nl.Open cannot find it any more. A
// second Remove does nothing.
func Remove(t testing.TB, path string) {
	t.Helper()
	err := syscall.Unmount(path, syscall.MNT_DETACH)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove namespace %s: %v", path, err)
	}
}

// create makes a new namespace, as "ip netns add" does. The name contains the process ID, which mounted needs. So
// create cannot use testutils.NewNS of containernetworking/plugins, which chooses the name itself. testutils.NewNS also
// mounts the directory over itself.
func create(name string) (path string, err error) {
	name = fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(name, "/", "-"), os.Getpid(), rand.Uint32())
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is in the new namespace, and ends with the goroutine
		ns, err := netns.NewNamed(name)
		if err == nil {
			err = ns.Close()
		}
		done <- err
	}()
	return filepath.Join(dir, name), <-done
}

// mounted lists the files of the namespaces in dir. It leaves out namespaces that create has made in other processes,
// because the tests of another package may run at the same time.
func mounted() []string {
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	return slices.DeleteFunc(names, func(name string) bool {
		made := created.FindStringSubmatch(name)
		return made != nil && made[1] != strconv.Itoa(os.Getpid())
	})
}

// created matches the names that create makes.
var created = regexp.MustCompile(`-(\d+)-\d+$`)
