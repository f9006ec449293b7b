// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"fmt"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// runPod starts a process in a namespace of its own, as a runtime that gives
// namespaces no names, and gives it the addresses.
func runPod(t *testing.T, addrs ...netip.Addr) {
	t.Helper()
	usePod(t, addrs...)
}

// usePod is runPod with a way to end the pod.
func usePod(t *testing.T, addrs ...netip.Addr) (stop func()) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(stop)
	ns, err := nl.Open("pod", fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() // the process keeps it
	w := nl.Wiring{{NS: ns, Object: nl.Up{Dev: "lo"}}}
	for _, a := range addrs {
		w = append(w, nl.Step{NS: ns, Object: nl.Addr{Prefix: netip.PrefixFrom(a, a.BitLen()), Dev: "lo"}})
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	return stop
}

// TestUsedProcess: a pod is seen by its process where the runtime gives its namespace no name.
func TestUsedProcess(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.77")
	runPod(t, a)
	if used := lease.UsedAddrs(); used.By[a] == "" {
		t.Errorf("%v is not used: %v", a, used)
	}
}
