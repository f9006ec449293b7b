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

// Stranger starts a process as a user without privileges, in a user namespace and a network namespace of its own, as anybody on a node
// can. It returns the network namespace, with lo up, and its path. The process ends with the test.
func Stranger(t testing.TB) (n *nl.NS, path string) {
	t.Helper()
	Need(t, "root", "netns")
	const nobody = 65534
	only := []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}}
	cmd := exec.Command("cat") // ends with this process, however that ends; a signal of Pdeathsig comes with the end of a thread
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: only, GidMappings: only}
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		_ = cmd.Wait() // a test may have killed it
	})
	path = fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
	n, err = nl.Open("stranger", path)
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
