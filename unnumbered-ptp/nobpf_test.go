// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// withoutBPF runs f in a namespace, on a thread that must not call bpf(2), as on a kernel in lockdown mode. The thread
// ends after f.
func withoutBPF(n *nl.NS, f func() error) error {
	return n.Do(func() error {
		runtime.LockOSThread() // there is no unlock, so the thread ends with its goroutine
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // load the number of the system call
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_BPF},
			{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
			{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
		}
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0,
			0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
		return f()
	})
}

// TestWithoutBPF: without BPF, pods still reach Services, unless the configuration requires BPF.
func TestWithoutBPF(t *testing.T) {
	f := newFabric(t)
	f.add(f.node, kubeProxy("tcp4"))
	serve(t, f.other, ":8080")
	p := f.pod("pod1", pod1Addr)
	add := func() error {
		return withoutBPF(f.node, func() (err error) {
			p.result, err = ptp.Commands().Add(t.Context(), &p.request)
			return err
		})
	}
	must(t, add())
	must(t, f.CHECK(p))
	if tables := nltest.Hooked(t, p.NS); !slices.Contains(tables, "inet "+nl.OwnTable) {
		t.Errorf("tables in the pod: %v", tables)
	}
	if seen, err := call(p.NS, "tcp4", "172.20.0.10:80"); err != nil || seen != pod1Addr {
		t.Errorf("seen as %q; %v", seen, err)
	}
	must(t, f.DEL(p))

	p.request.Config.ServiceLoop = "redirect"
	if err := add(); !errors.Is(err, nl.ErrNoBPF) {
		t.Errorf("ADD: %v", err)
	}
	must(t, f.DEL(p))
	if err := withoutBPF(f.node, func() error {
		return ptp.Commands().Status(t.Context(), &plugin.Request[ptp.Config]{Config: p.request.Config})
	}); !errors.Is(err, nl.ErrNoBPF) {
		t.Errorf("STATUS: %v", err)
	}
	p.request.Config.ServiceLoop, p.request.Config.BlockInstanceMetadata = "", new(true)
	if err := add(); !errors.Is(err, nl.ErrNoBPF) {
		t.Errorf("ADD that is to block the metadata service: %v", err)
	}
	must(t, f.DEL(p))
	if err := withoutBPF(f.node, func() error {
		return ptp.Commands().Status(t.Context(), &plugin.Request[ptp.Config]{Config: p.request.Config})
	}); !errors.Is(err, nl.ErrNoBPF) {
		t.Errorf("STATUS: %v", err)
	}
	must(t, f.node.Do(func() error {
		return ptp.Commands().Status(t.Context(), &plugin.Request[ptp.Config]{Config: p.request.Config})
	}))
}
