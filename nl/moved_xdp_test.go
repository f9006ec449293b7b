// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"encoding/binary"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestMovedLinkXDP: a pod has attached an XDP program to its card. The next pod gets the card without this program.
func TestMovedLinkXDP(t *testing.T) {
	b := newBay(t)
	w := nl.Wiring{{NS: b.node, Object: b.moved()}}
	b.must(w.Add())
	b.xdp(b.pod, "eth0")
	b.must(w.Del())
	b.noXDP(b.node, "ens6")
}

// TestMovedLinkXDPLate: the kernel has moved the card back at the end of the pod's namespace, with the pod's XDP
// program. The next pod gets the card without this program.
func TestMovedLinkXDPLate(t *testing.T) {
	b := newBay(t)
	b.xdp(b.node, "ens6")
	w := nl.Wiring{{NS: b.node, Object: b.moved()}}
	b.must(w.Add())
	b.noXDP(b.pod, "eth0")
	b.must(w.Del())
}

// TestMovedLinkXDPAbove: a link above the card, in another namespace, also has an XDP program. Linux 5.10 nevertheless
// detaches the card's program, and later kernels refuse to. Del moves the card in either case. As long as the link
// above exists, the next Add fails.
func TestMovedLinkXDPAbove(t *testing.T) {
	nltest.Need(t, "ipvlan")
	b := newBay(t)
	elsewhere, _ := nltest.NS(t, "elsewhere")
	w := nl.Wiring{{NS: b.node, Object: b.moved()}}
	b.must(w.Add())
	b.xdp(b.pod, "eth0")
	b.must(nl.Wiring{{NS: b.pod, Object: nl.IPVlan{Name: "above", Master: "eth0", NS: elsewhere, Mode: "l2"}}}.Add())
	b.xdp(elsewhere, "above")
	if err := w.Del(); err == nil {
		b.noXDP(b.node, "ens6")
	} else if !errors.Is(err, unix.EEXIST) {
		t.Errorf("Del: %v", err)
	}
	if err := w.Add(); !errors.Is(err, nl.ErrShared) {
		t.Errorf("Add: %v", err)
	}
	nltest.Shell(b, elsewhere, "ip link del above")
	b.must(w.Add())
	b.noXDP(b.pod, "eth0")
	b.must(w.Del())
}

// xdp attaches a program that drops all packets.
func (b *bay) xdp(n *nl.NS, link string) {
	b.Helper()
	const drop = 1 // XDP_DROP
	prog := program(b.T, unix.BPF_PROG_TYPE_XDP, drop)
	defer unix.Close(prog)
	b.must(n.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		return netlink.LinkSetXdpFdWithFlags(l, prog, unix.XDP_FLAGS_SKB_MODE)
	}))
}

func (b *bay) noXDP(n *nl.NS, link string) {
	b.Helper()
	b.must(n.Do(func() error {
		out, err := exec.Command("ip", "-d", "link", "show", link).CombinedOutput()
		if strings.Contains(string(out), "xdp") {
			b.Errorf("%s has the program of a pod: %s", link, out)
		}
		return err
	}))
}

// program loads a program that only returns a result.
func program(t *testing.T, kind, result uint32) int {
	t.Helper()
	code := binary.LittleEndian.AppendUint64(nil, uint64(result)<<32|0xb7) // r0 = result
	code = binary.LittleEndian.AppendUint64(code, 0x95)                    // exit
	license := []byte("GPL\x00")
	attr := struct {
		kind, count   uint32
		code, license *byte
		rest          [12]uint64
	}{kind: kind, count: 2, code: &code[0], license: &license[0]}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), 48)
	if errno != 0 {
		t.Fatal(errno)
	}
	return int(fd)
}
