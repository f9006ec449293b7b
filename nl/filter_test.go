// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestHooks: a link has a hook for outgoing packets only if it has a filter for them. On a link without such a hook,
// Check and Del find no filter for outgoing packets, and Add of such a filter fails.
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

// hooks checks the kinds of the qdiscs that the links eth0 and eth1 have for their filters.
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

// TestOtherRevision: the programs of another release have another revision in their names. Check accepts these programs
// if their names tell the same effect. Add replaces them, and Del deletes them.
func TestOtherRevision(t *testing.T) {
	host, pod := two(t)
	splice := nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}
	wiring := nl.Wiring{{pod, forbidden}, {pod, splice}}
	if err := (nl.Wiring{{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}}}).Add(); err != nil {
		t.Fatal(err)
	}
	if err := wiring.Add(); err != nil {
		t.Fatal(err)
	}
	ours := programs(t, pod, func(name string) string { return name[:strings.LastIndex(name, ":")] + ":1234" })
	if len(ours) != 4 {
		t.Fatalf("the links have the programs %v, want 4", ours)
	}
	other := nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:49"}
	if err := errors.Join(splice.Check(pod), forbidden.Check(pod)); err != nil || other.Check(pod) == nil {
		t.Errorf("%v; or another splice is as good", err)
	}
	if err := wiring.Add(); err != nil {
		t.Error(err)
	}
	if now := programs(t, pod, func(string) string { return "cni_ipvlan_vpc_k8s:1234" }); !slices.Equal(now, ours) {
		t.Errorf("after Add, the links have the programs %v, want %v", now, ours)
	}
	if err := splice.Check(pod); err == nil {
		t.Error("a program whose name tells no effect is accepted")
	}
	if err := errors.Join(forbidden.Del(pod), splice.Del(pod)); err != nil {
		t.Error(err)
	}
	if left := programs(t, pod, func(name string) string { return name }); len(left) > 0 {
		t.Errorf("after Del: %v", left)
	}
}

// programs replaces the programs of the pod's filters by programs that do nothing, with other names. It returns the
// former names.
func programs(t *testing.T, n *nl.NS, other func(name string) string) (names []string) {
	t.Helper()
	program := idle(t)
	for _, dev := range forbidden.Devs {
		l, err := n.LinkByName(dev)
		if err == nil {
			err = n.Do(func() (err error) {
				for _, hook := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
					link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: l.Index}}
					filters, e := netlink.FilterList(link, hook)
					err = errors.Join(err, e)
					for _, f := range filters {
						b := f.(*netlink.BpfFilter)
						names = append(names, b.Name)
						b.Fd, b.Name = program, other(b.Name)
						err = errors.Join(err, netlink.FilterReplace(b))
					}
				}
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// idle loads a program that passes all packets.
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
