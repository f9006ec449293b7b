// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package nltest makes namespaces for tests, and has scripts that run tests on a suitable kernel.
//
// [NS] makes a namespace, [Shell] runs a script in a namespace, and [Dump] returns the state of a namespace. [Need]
// skips a test if the machine lacks a feature. A [Guard] fails if the tests leave something behind. The scripts in the
// directory vm run a test binary on this machine's kernel if the kernel has ipvlan. If the kernel does not have ipvlan,
// the scripts run the test binary in user-mode Linux or a virtual machine:
//
//	go test -exec "$PWD/nl/nltest/vm/exec" ./nl/...
//
// Nothing here is a fake: a test runs on a real kernel, or it does not run. The package knows nothing of CNI or EC2.
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

const netnsDir = "/run/netns" // where ip-netns(8) looks for namespaces

// The main goroutine locks the process's first thread, so that no other goroutine runs on it. A test's goroutine may
// move its thread to another namespace. When the goroutine ends, the runtime also ends the thread. But the runtime
// cannot end the first thread. So a first thread in another namespace would keep this namespace as long as the process
// runs.
func init() { runtime.LockOSThread() }

// NS makes a network namespace whose link lo is up, mounts the namespace at path, and opens it. When the test ends, NS
// closes and unmounts the namespace. The argument name becomes the field Name of n.
func NS(t testing.TB, name string) (n *nl.NS, path string) {
	t.Helper()
	Need(t, "netns")
	path, err := createNamespace(name)
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

// Shell runs a script in a namespace, and returns the script's output. The test fails if a command of the script fails.
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

// Without removes a capability from the calling thread, calls f on this thread, and puts the capability back.
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

// Remove unmounts a namespace that NS has made, and removes its file, before the test ends. Container runtimes
// sometimes do this before they call DEL. The namespace exists as long as a process is in it, but nl.Open does not find
// it any more. A second Remove does nothing.
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

// createNamespace makes a new namespace, like "ip netns add". The file's name contains the process ID, which
// mountedNamespaces needs. createNamespace does not use testutils.NewNS of containernetworking/plugins, which chooses
// another name, and makes a bind mount at netnsDir.
func createNamespace(name string) (path string, err error) {
	name = fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(name, "/", "-"), os.Getpid(), rand.Uint32())
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlock: the thread is in the new namespace, so it must end with the goroutine
		ns, err := netns.NewNamed(name)
		if err == nil {
			err = ns.Close()
		}
		done <- err
	}()
	return filepath.Join(netnsDir, name), <-done
}

// mountedNamespaces lists the files in netnsDir. It leaves out files that createNamespace has made in other processes,
// because the tests of another package may run at the same time.
func mountedNamespaces() []string {
	names, _ := filepath.Glob(filepath.Join(netnsDir, "*"))
	return slices.DeleteFunc(names, func(name string) bool {
		made := createdName.FindStringSubmatch(name)
		return made != nil && made[1] != strconv.Itoa(os.Getpid())
	})
}

// createdName matches the file names that createNamespace chooses.
var createdName = regexp.MustCompile(`-(\d+)-\d+$`)
