// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestHooks: a link has a hook for what goes out only if there is a filter for that. Where
// there is none, such a filter is not taken for one for what comes in, and is refused.
func TestHooks(t *testing.T) {
	host, pod := two(t)
	links := nl.Wiring{{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}}}
	splice := nl.Wiring{{pod, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}}}
	forbid := nl.Wiring{{pod, forbidden}}
	if err := errors.Join(links.Add(), splice.Add(), splice.Check()); err != nil {
		t.Fatal(err)
	}
	hooks(t, pod, "ingress", "ingress")
	for _, err := range []error{forbidden.Check(pod), forbidden.Del(pod)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what goes out, before Add: %v", err)
		}
	}
	if err := forbid.Add(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Add of what goes out: %v", err)
	}
	if err := splice.Check(); err != nil {
		t.Errorf("after that: %v", err)
	}

	if err := errors.Join(links.Del(), links.Add(), forbid.Add(), splice.Add(), forbid.Check(),
		splice.Check()); err != nil {
		t.Fatal(err)
	}
	hooks(t, pod, "clsact", "clsact")
}

// hooks wants the links eth0 and eth1 to have these kinds of qdisc for their filters.
func hooks(t *testing.T, n *nl.NS, want ...string) {
	t.Helper()
	var got []string
	for _, dev := range forbidden.Devs {
		l, err := n.LinkByName(dev)
		if err != nil {
			t.Fatal(err)
		}
		var all []netlink.Qdisc
		if err := n.Do(func() (err error) {
			all, err = netlink.QdiscList(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: l.Index}})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for _, q := range all {
			if q.Attrs().Parent == netlink.HANDLE_INGRESS {
				got = append(got, q.Type())
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("qdiscs: -want +got\n%s", d)
	}
}

// TestOlderPrograms: a pod that an earlier release has made is as good as it was: its programs
// had names that do not tell what they do, and what goes out had the handle of what comes in.
// The next Add replaces them, and Del finds them.
func TestOlderPrograms(t *testing.T) {
	host, pod := two(t)
	links := nl.Wiring{{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}}}
	splice := nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}
	if err := links.Add(); err != nil {
		t.Fatal(err)
	}
	for _, dev := range forbidden.Devs {
		older(t, pod, dev, "cni_ipvlan_vpc_k8s:1234")
	}
	if err := errors.Join(splice.Check(pod), forbidden.Check(pod)); err != nil {
		t.Error(err)
	}
	if err := (nl.Wiring{{pod, splice}}).Add(); err != nil {
		t.Fatal(err)
	}
	other := nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:49"}
	if err := other.Check(pod); err == nil {
		t.Error("after an Add, another splice is as good")
	}
	if err := errors.Join(splice.Check(pod), forbidden.Del(pod), splice.Check(pod)); err != nil {
		t.Error(err)
	}
	if err := forbidden.Check(pod); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Del: %v", err)
	}
}

// older gives a link what an earlier release did, with a program that does nothing.
func older(t *testing.T, n *nl.NS, dev, name string) {
	t.Helper()
	l, err := n.LinkByName(dev)
	if err != nil {
		t.Fatal(err)
	}
	program := idle(t)
	if err := n.Do(func() error {
		qdisc := netlink.QdiscAttrs{LinkIndex: l.Index, Handle: netlink.MakeHandle(0xffff, 0),
			Parent: netlink.HANDLE_CLSACT}
		err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: qdisc})
		for _, hook := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			at := netlink.FilterAttrs{LinkIndex: l.Index, Parent: hook, Handle: 1, Priority: 72,
				Protocol: unix.ETH_P_ALL}
			err = errors.Join(err, netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: at, Fd: program, Name: name,
				DirectAction: true}))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// idle loads a program that passes everything.
func idle(t *testing.T) (fd int) {
	t.Helper()
	code, license := []uint64{unix.BPF_ALU64 | unix.BPF_MOV, unix.BPF_JMP | unix.BPF_EXIT}, []byte("GPL\x00")
	attr := struct { // the beginning of union bpf_attr for BPF_PROG_LOAD, see bpf(2)
		progType, count uint32
		code            *uint64
		license         *byte
		log             [2]uint64
	}{progType: unix.BPF_PROG_TYPE_SCHED_CLS, count: uint32(len(code)), code: &code[0], license: &license[0]}
	r, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { unix.Close(int(r)) })
	return int(r)
}
