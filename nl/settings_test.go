// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"bytes"
	"errors"
	"maps"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// everything has all settings of a veth pair that a pod can change with ip(8).
var everything = map[string]string{
	"txqueuelen":        "txqueuelen 7",
	"MTU":               "mtu 1400",
	"link mode":         "mode dormant",
	"alias":             "alias left",
	"broadcast address": "broadcast 00:00:00:00:00:01",
	"gso_max_size":      "gso_max_size 5000",
	"gso_max_segs":      "gso_max_segs 5",
	"gro_max_size":      "gro_max_size 6000",
	"flags":             "promisc on allmulticast on arp off multicast off",
}

// settings reads the settings of the card in a namespace.
func (b bay) settings(n *nl.NS) nl.Settings {
	b.Helper()
	l, err := n.FindMAC(cardMAC)
	b.must(err)
	s, err := n.Settings(l)
	b.must(err)
	return s
}

// TestSettings: a pod changes the settings of a veth pair, one at a time and then all together. The node puts them
// back.
func TestSettings(t *testing.T) {
	b := newBay(t)
	b.must(b.moved().Add(b.node))
	l, err := b.pod.LinkByName("eth0")
	b.must(err)
	was := b.settings(b.pod)
	changes := map[string]func(){"offloads": func() { b.must(b.ethtool(b.pod, "eth0", noScatterGather...)) }}
	shown, err := exec.Command("ip", "-d", "link", "show", "lo").Output()
	b.must(err)
	for name, arg := range everything {
		if name == "gro_max_size" && !bytes.Contains(shown, []byte(name)) {
			continue // Linux 5.10 has no such setting
		}
		changes[name] = func() { nltest.Shell(b, b.pod, "ip link set eth0 "+arg) }
	}
	for name, change := range changes {
		change()
		if now := b.settings(b.pod); now[name] == was[name] {
			t.Errorf("%s is %q before and after the change", name, was[name])
		}
		if err := b.pod.Kept(l, was); err == nil || !strings.Contains(err.Error(), "the "+name+" of eth0 is") {
			t.Errorf("%s: %v", name, err)
		}
		b.must(b.pod.PutBack(l, was))
		if d := cmp.Diff(was, b.settings(b.pod)); d != "" {
			t.Errorf("%s is put back: -was +is\n%s", name, d)
		}
	}
	for _, change := range changes {
		change()
	}
	b.must(b.moved().Del(b.node)) // the settings move with the card
	l, err = b.node.LinkByName("ens6")
	b.must(err)
	left := b.settings(b.node)
	for name := range changes {
		if left[name] == was[name] && name != "flags" { // Del resets the flags by itself
			t.Errorf("%s did not move with the card: it need not be put back", name)
		}
	}
	b.must(errors.Join(b.node.PutBack(l, was), b.node.Kept(l, was)))
	if d := cmp.Diff(was, b.settings(b.node)); d != "" {
		t.Errorf("-was +is\n%s", d)
	}
}

// TestSettingsRefused: the link refuses one setting. PutBack names this setting, and puts the others back.
func TestSettingsRefused(t *testing.T) {
	b := newBay(t)
	l, err := b.node.LinkByName("ens6")
	b.must(err)
	was := b.settings(b.node)
	nltest.Shell(b, b.node, "ip link set ens6 txqueuelen 7")
	for name, value := range map[string]string{"MTU": "2147483647", "rings": "00", "number of ntuple rules": "01",
		"a setting of another release": "00"} {
		asked := maps.Clone(was)
		asked[name] = value
		if err := b.node.PutBack(l, asked); err == nil || !strings.Contains(err.Error(), name) ||
			strings.Contains(err.Error(), "txqueuelen") {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.must(b.node.Kept(l, was))
}

// TestMovedLinkSysctls: a pod changes sysctls of its card. After Del, the card on the node has the same sysctls as
// before.
func TestMovedLinkSysctls(t *testing.T) {
	b := newBay(t)
	dump := func() (out []byte) {
		b.must(b.node.Do(func() error {
			// grep fails, because some of these files cannot be read.
			out, _ = exec.Command("sh", "-c", "cd /proc/sys/net; grep -H . ipv[46]/conf/ens6/* ipv[46]/neigh/ens6/* "+
				"2>/dev/null | grep -v stable_secret").Output()
			return nil
		}))
		return out
	}
	before := dump()
	b.must(b.moved().Add(b.node))
	nltest.Shell(b, b.pod, `cd /proc/sys/net
		for s in ipv4/conf/eth0/forwarding ipv4/conf/eth0/proxy_arp ipv4/conf/eth0/rp_filter ipv6/conf/eth0/accept_ra_defrtr \
			ipv6/conf/eth0/forwarding ipv4/neigh/eth0/gc_stale_time ipv6/neigh/eth0/ucast_solicit; do
			if read v <$s && [ $v = 0 ]; then echo 1 >$s; else echo 0 >$s; fi
		done`)
	b.must(b.moved().Del(b.node))
	if d := cmp.Diff(string(before), string(dump())); d != "" || len(before) == 0 {
		t.Errorf("-before +after\n%s", d)
	}
}

// TestMovedLinkAbove: after Del, links that a pod has made above its card are gone. If such a link is in another
// namespace, Add refuses the card.
func TestMovedLinkAbove(t *testing.T) {
	nltest.Need(t, "ipvlan")
	b := newBay(t)
	elsewhere, _ := nltest.NS(t, "elsewhere")
	b.must(b.moved().Add(b.node))
	nltest.Shell(b, b.pod, "ip link add link eth0 name m0 type macvlan; ip link add link m0 name m1 type macvlan")
	b.must(b.moved().Del(b.node))
	nltest.Shell(b, b.pod, "! ip link show m0 2>/dev/null; ! ip link show m1 2>/dev/null")
	b.must(b.moved().Add(b.node))
	b.must(nl.Wiring{{NS: b.pod, Object: nl.IPVlan{Name: "i0", Master: "eth0", NS: elsewhere, Mode: "l2"}}}.Add())
	b.must(b.moved().Del(b.node))
	if err := b.moved().Add(b.node); !errors.Is(err, nl.ErrShared) {
		t.Errorf("a slave is in another namespace: %v", err)
	}
	nltest.Shell(b, elsewhere, "ip link del i0")
	nltest.Shell(b, b.node, "ip link add link ens6 name m0 type macvlan")
	if err := b.moved().Add(b.node); !errors.Is(err, nl.ErrShared) || !strings.Contains(err.Error(), "m0") {
		t.Errorf("the node has a macvlan on it: %v", err)
	}
	nltest.Shell(b, b.node, "ip link del m0")
	b.must(b.moved().Add(b.node))
	b.must(b.moved().Del(b.node))
}

// TestMovedLinkTCX: a pod has attached programs of tcx to its card, some by a bpf_link that a process still holds. The
// next pod gets the card without them.
func TestMovedLinkTCX(t *testing.T) {
	nltest.Need(t, "tcx")
	b := newBay(t)
	w := nl.Wiring{{NS: b.node, Object: b.moved()}}
	b.must(w.Add())
	for _, link := range []bool{false, true, false} {
		b.tcx(b.pod, "eth0", link)
	}
	b.must(w.Del())
	b.noTCX(b.node, "ens6")

	// The kernel has moved the card back at the end of the pod's namespace.
	for _, link := range []bool{false, true} {
		b.tcx(b.node, "ens6", link)
	}
	b.must(w.Add())
	b.noTCX(b.pod, "eth0")
	b.must(w.Del())
}

// These are hooks and commands of linux/bpf.h.
const (
	tcxIngress, tcxEgress = 46, 47
	bpfLinkCreate         = 28
)

// tcx attaches a program to both hooks of a link. The program passes all packets.
func (b bay) tcx(n *nl.NS, link string, held bool) {
	b.Helper()
	const next = 0xffffffff // TCX_NEXT
	prog := program(b.T, unix.BPF_PROG_TYPE_SCHED_CLS, next)
	defer unix.Close(prog)
	b.must(n.Do(func() (failed error) {
		l, err := nl.Node() // the namespace of this thread
		if err != nil {
			return err
		}
		defer l.Close()
		at, err := l.LinkByName(link)
		if err != nil {
			return err
		}
		for _, hook := range []uint32{tcxIngress, tcxEgress} {
			attach := [4]uint32{uint32(at.Index), uint32(prog), hook, 0}
			command := uintptr(unix.BPF_PROG_ATTACH)
			if held {
				command, attach[0], attach[1] = bpfLinkCreate, uint32(prog), uint32(at.Index)
			}
			fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attach)), unsafe.Sizeof(attach))
			if errno != 0 {
				failed = errors.Join(failed, errno)
			} else if held {
				b.Cleanup(func() { unix.Close(int(fd)) })
			}
		}
		return failed
	}))
}

// noTCX checks that a link has no programs of tcx.
func (b bay) noTCX(n *nl.NS, link string) {
	b.Helper()
	at, err := n.LinkByName(link)
	b.must(err)
	b.must(n.Do(func() error {
		for _, hook := range []uint32{tcxIngress, tcxEgress} {
			query := [16]uint32{uint32(at.Index), hook}
			if _, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&query)),
				unsafe.Sizeof(query)); errno != 0 {
				return errno
			}
			if count := query[6]; count != 0 {
				b.Errorf("%s has %d programs of tcx at hook %d", link, count, hook)
			}
		}
		return nil
	}))
}

// TestSettingsCard: a program changes settings of the driver, as ethtool(8) does, and the node puts them back. Some of
// these settings exist on a veth pair, and others on a tap.
func TestSettingsCard(t *testing.T) {
	b := newBay(t)
	nltest.Shell(b, b.pod, "ip link add many numtxqueues 4 numrxqueues 4 type veth peer x; "+
		"[ -e /dev/net/tun ] || modprobe tun; ip tuntap add tap0 mode tap")
	for _, tt := range []struct {
		link, setting string
		set           []uint32
	}{
		{"many", "channels", []uint32{0x3d, 0, 0, 0, 0, 2, 2, 0, 0}},
		{"many", "offloads", noScatterGather},
		{"tap0", "coalescing", append([]uint32{0x0f, 0, 5}, make([]uint32, 20)...)},
		{"tap0", "offloads", noScatterGather},
	} {
		l, err := b.pod.LinkByName(tt.link)
		b.must(err)
		was, err := b.pod.Settings(l)
		b.must(err)
		err = b.ethtool(b.pod, tt.link, tt.set...)
		if _, has := was[tt.setting]; !has && errors.Is(err, unix.EOPNOTSUPP) {
			continue // the drivers of Linux 5.10 have fewer settings
		}
		b.must(err)
		if err := b.pod.Kept(l, was); err == nil || !strings.Contains(err.Error(),
			"the "+tt.setting+" of "+tt.link+" is") {
			t.Errorf("%s of %s: %v", tt.setting, tt.link, err)
		}
		b.must(errors.Join(b.pod.PutBack(l, was), b.pod.Kept(l, was)))
	}
}

// noScatterGather switches off the first offload. For every 32 offloads, it has a mask of the offloads to set, and a
// mask of their values.
var noScatterGather = []uint32{0x3b, 2, 1, 0, 0, 0}

// ethtool executes a command of ethtool(8) in a namespace.
func (b bay) ethtool(n *nl.NS, link string, command ...uint32) error {
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		request := struct {
			name [unix.IFNAMSIZ]byte
			data *uint32
			_    [16]byte
		}{data: &command[0]}
		copy(request.name[:], link)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
			uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	})
}
