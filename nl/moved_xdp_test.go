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
	b.xdp(b.pod, "eth0")
	b.must(w.Del())
	b.noXDP(b.node, "ens6")
}

// TestMovedLinkXDPLate: the card has come back by itself, when the kernel ended the pod's namespace.
func TestMovedLinkXDPLate(t *testing.T) {
	b := newBay(t)
	b.xdp(b.node, "ens6")
	w := nl.Wiring{{NS: b.node, Object: b.moved()}}
	b.must(w.Add())
	b.noXDP(b.pod, "eth0")
	b.must(w.Del())
}

// TestMovedLinkXDPAbove: a link above the card has a program, too, and the kernel detaches none from the card as long as it has. The
// card comes back all the same, and the next pod gets it without a program.
func TestMovedLinkXDPAbove(t *testing.T) {
	b := newBay(t)
	w := nl.Wiring{{NS: b.node, Object: b.moved()}}
	b.must(w.Add())
	b.xdp(b.pod, "eth0")
	b.must(nl.Wiring{{NS: b.pod, Object: nl.IPVlan{Name: "above", Master: "eth0", NS: b.pod, Mode: "l2"}}}.Add())
	b.xdp(b.pod, "above")
	b.must(w.Del())
	b.must(b.pod.Do(func() error {
		l, err := netlink.LinkByName("above")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}))
	b.must(w.Add())
	b.noXDP(b.pod, "eth0")
	b.must(w.Del())
}

// xdp has a link drop all packets, as long as nobody detaches the program.
func (b *bay) xdp(n *nl.NS, link string) {
	b.Helper()
	prog := xdpDrop(b.T)
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
