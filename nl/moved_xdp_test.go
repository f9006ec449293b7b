// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"encoding/binary"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestMovedLinkXDP: a pod has left a program of XDP at its card, and has ended. The card drops no packets of the next pod.
func TestMovedLinkXDP(t *testing.T) {
	b := newBay(t)
	w := nl.Wiring{{NS: b.node, Object: b.moved()}}
	b.must(w.Add())
	prog := xdpDrop(t)
	b.must(b.pod.Do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetXdpFdWithFlags(l, prog, unix.XDP_FLAGS_SKB_MODE)
	}))
	unix.Close(prog) // as the program in the pod ends
	b.must(w.Del())
	b.must(b.node.Do(func() error {
		out, err := exec.Command("ip", "-d", "link", "show", "ens6").CombinedOutput()
		if strings.Contains(string(out), "xdp") {
			t.Errorf("the node has the pod's program: %s", out)
		}
		return err
	}))
}

// xdpDrop loads a program of XDP that drops everything.
func xdpDrop(t *testing.T) int {
	t.Helper()
	code := binary.LittleEndian.AppendUint64(nil, 0x00000001000000b7) // r0 = XDP_DROP
	code = binary.LittleEndian.AppendUint64(code, 0x95)               // exit
	license := []byte("GPL\x00")
	attr := struct {
		kind, count   uint32
		code, license *byte
		rest          [12]uint64
	}{kind: unix.BPF_PROG_TYPE_XDP, count: 2, code: &code[0], license: &license[0]}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), 48)
	if errno != 0 {
		t.Fatal(errno)
	}
	return int(fd)
}
