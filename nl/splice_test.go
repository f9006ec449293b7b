// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

func TestSpliceString(t *testing.T) {
	const want = `tc qdisc add dev eth1 ingress; tc filter add dev eth1 ingress pref 72 handle 1 bpf classid :107 direct-action # packets to 02:00:00:00:00:48: sport + 16384, bpf_redirect_neigh eth0; other packets: mark | 0x2000
	tc qdisc add dev eth0 ingress; tc filter add dev eth0 ingress pref 72 handle 1 bpf classid :107 direct-action # packets to ports >= 49152 that no socket awaits: dport - 16384, bpf_redirect_peer eth1`
	if d := cmp.Diff(want, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48", Mark: 0x2000,
		Pod: 263}.String()); d != "" {
		t.Error(d)
	}
}

// TestSpliceSupported makes the kernel's verifier check the programs.
func TestSpliceSupported(t *testing.T) {
	nltest.Need(t, "root")
	for _, mark := range []uint32{0, 0x2000, 1 << 31} {
		if err := (nl.Splice{MAC: "02:00:00:00:00:48", Mark: mark}).Supported(); err != nil {
			t.Errorf("mark %#x: %v", mark, err)
		}
	}
}

// TestSplice adds a Splice twice, repairs a Splice that differs, and deletes the Splice twice.
func TestSplice(t *testing.T) {
	host, pod := two(t)
	links := nl.Wiring{
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}},
		{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
	}
	if err := links.Add(); err != nil {
		t.Fatal(err)
	}
	s := nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}
	w := nl.Wiring{{pod, s}}
	if err := s.Check(pod); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check before Add: %v", err)
	}
	if err := s.Del(pod); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Del before Add: %v", err)
	}
	for range 2 {
		if err := errors.Join(w.Add(), w.Check()); err != nil {
			t.Fatal(err)
		}
	}
	other := nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:49"}
	if err := other.Check(pod); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check of another: %v", err)
	}
	if err := (nl.Wiring{{pod, other}}).Add(); err != nil {
		t.Errorf("Add of another: %v", err)
	}
	if err := errors.Join(w.Add(), w.Check()); err != nil { // w again, after another Splice
		t.Error(err)
	}
	if err := links[:1].Del(); err != nil { // a new veth has another index
		t.Fatal(err)
	}
	if w.Check() == nil {
		t.Error("Check without the veth: no error")
	}
	if err := errors.Join(links.Add(), w.Add(), w.Check()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := w.Del(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Check(pod); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check after Del: %v", err)
	}
}

// TestSpliceShared: with a BPF file system, the programs are loaded once for all pods. Only this test's thread has the
// file system, because tests in other processes may also pin programs.
func TestSpliceShared(t *testing.T) {
	host, pod := two(t)
	other, _ := nltest.NS(t, "other")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without an unlock: the thread ends with its mounts
		if err := errors.Join(
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""),
		); err != nil {
			t.Error(err)
			return
		}
		shared(t, host, pod, other)
	}()
	<-done
}

func shared(t *testing.T, host *nl.NS, pods ...*nl.NS) {
	count := func() int {
		files, _ := filepath.Glob("/sys/fs/bpf/cni_ipvlan_vpc_k8s:*")
		return len(files)
	}
	for _, n := range pods {
		w := nl.Wiring{
			{host, nl.Veth{Name: "veth" + n.Name, Peer: "eth1", PeerNS: n}},
			{host, nl.Veth{Name: "eni" + n.Name, Peer: "eth0", PeerNS: n}},
			{n, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}},
		}
		if err := errors.Join(w.Add(), w.Add(), w.Check()); err != nil {
			t.Error(err)
		}
		if got := count(); got != 4 {
			t.Errorf("%d objects are kept, want 4: two maps and two programs", got)
		}
	}
	if _, err := host.RemoveShared(); err != nil || count() != 0 {
		t.Errorf("RemoveShared: %v, %d objects are kept", err, count())
	}
}

func BenchmarkSplice(b *testing.B) {
	host, pod := two(b)
	if err := (nl.Wiring{
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}},
		{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
	}).Add(); err != nil {
		b.Fatal(err)
	}
	s := nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}
	b.Run("Add", func(b *testing.B) {
		for b.Loop() {
			if err := s.Add(pod); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := s.Del(pod); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("Check", func(b *testing.B) {
		if err := s.Add(pod); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := s.Check(pod); err != nil {
				b.Fatal(err)
			}
		}
	})
}
