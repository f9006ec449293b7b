// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// Stranger starts a process without privileges, in a user namespace and a network namespace of its own. Stranger
// returns this network namespace, in which lo is up, and its path. The process ends when the test ends.
func Stranger(t testing.TB) (n *nl.NS, path string) {
	t.Helper()
	Need(t, "root", "netns")
	const overflow = 65534
	only := []syscall.SysProcIDMap{{ContainerID: 0, HostID: overflow, Size: 1}}
	pid, _ := Idle(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: only,
		GidMappings: only})
	path = fmt.Sprintf("/proc/%d/ns/net", pid)
	n, err := nl.Open("stranger", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := (nl.Wiring{{NS: n, Object: nl.Up{Dev: "lo"}}}).Add(); err != nil {
		t.Fatal(err)
	}
	return n, path
}

// Idle starts a process that does nothing. The new process ends when the test calls the returned function, when the
// test ends, or when this process ends. Idle does not use Pdeathsig, because the thread that starts the process may end
// before the test.
func Idle(t testing.TB, attr *syscall.SysProcAttr) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command("cat")
	cmd.SysProcAttr = attr
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		_ = input.Close()
		_ = cmd.Wait() // a test may have killed the process, or may have called stop before
	}
	t.Cleanup(stop)
	return cmd.Process.Pid, stop
}
