// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"fmt"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// runPod starts a process in a namespace of its own, as a runtime that gives
// namespaces no names, and gives it the address.
func runPod(t *testing.T, a netip.Addr) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	ns, err := nl.Open("pod", fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	err = nl.Wiring{
		{NS: ns, Object: nl.Up{Dev: "lo"}},
		{NS: ns, Object: nl.Addr{Prefix: netip.PrefixFrom(a, 32), Dev: "lo"}},
	}.Add()
	if err != nil {
		t.Fatal(err)
	}
}
