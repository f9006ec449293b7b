// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

var forbidden = nl.Forbid{Devs: []string{"eth0", "eth1"}, Addrs: []netip.Addr{netip.MustParseAddr("169.254.169.254"),
	netip.MustParseAddr("fd00:ec2::254")}}

func TestForbidString(t *testing.T) {
	const want = `tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress pref 72 handle 2 bpf direct-action # drop packets to 169.254.169.254, fd00:ec2::254
	tc qdisc add dev eth1 clsact; tc filter add dev eth1 egress pref 72 handle 2 bpf direct-action # drop packets to 169.254.169.254, fd00:ec2::254`
	if d := cmp.Diff(want, forbidden.String()); d != "" {
		t.Error(d)
	}
}

// TestForbidPackets sends packets to several addresses, and checks which of them the program drops.
func TestForbidPackets(t *testing.T) {
	host, pod := two(t)
	w := nl.Wiring{
		{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}},
		{pod, forbidden},
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	eth0 := raw(t, pod, "eth0")
	four, six := forbidden.Addrs[0], forbidden.Addrs[1]
	for _, tt := range []struct {
		name    string
		addrs   []netip.Addr
		to      netip.Addr
		dropped bool
	}{
		{"IPv4", forbidden.Addrs, four, true},
		{"IPv4, the next address", forbidden.Addrs, four.Next(), false},
		{"IPv4, another network", forbidden.Addrs, netip.MustParseAddr("168.254.169.254"), false},
		{"IPv6", forbidden.Addrs, six, true},
		{"IPv6, the next address", forbidden.Addrs, six.Next(), false},
		{"IPv6, another network", forbidden.Addrs, netip.MustParseAddr("fc00:ec2::254"), false},
		{"IPv6, another in between", forbidden.Addrs, netip.MustParseAddr("fd00:ec2:0:1::254"), false},
		{"IPv6, another in the second half", forbidden.Addrs, netip.MustParseAddr("fd00:ec2::1:0:254"), false},
		{"no IPv6 address", forbidden.Addrs[:1], six, false},
		{"no IPv6 address, to none", forbidden.Addrs[:1], netip.IPv6Unspecified(), false},
		{"no IPv4 address", forbidden.Addrs[1:], four, false},
		{"no IPv4 address, to none", forbidden.Addrs[1:], netip.IPv4Unspecified(), false},
		{"IPv4 alone", forbidden.Addrs[:1], four, true},
		{"IPv6 alone", forbidden.Addrs[1:], six, true},
	} {
		if err := (nl.Wiring{{pod, nl.Forbid{Devs: forbidden.Devs, Addrs: tt.addrs}}}).Add(); err != nil {
			t.Fatal(err)
		}
		_, err := unix.Write(eth0, to(tt.to)) // ENOBUFS: the kernel has dropped the frame
		if dropped := errors.Is(err, unix.ENOBUFS); dropped != tt.dropped || !dropped && err != nil {
			t.Errorf("%s: dropped is %t (%v), want %t", tt.name, dropped, err, tt.dropped)
		}
	}
}

// to returns a frame to an address.
func to(a netip.Addr) []byte {
	frame, at := ip4(0, 0, udp(80)), 14+16
	if a.Is6() {
		frame, at = ip6(udp(80)), 14+24
	}
	copy(frame[at:], a.AsSlice())
	return frame
}

// TestForbid adds a Forbid twice, replaces a Forbid that differs, and deletes the Forbid twice. The same links have a
// Splice.
func TestForbid(t *testing.T) {
	host, pod := two(t)
	links := nl.Wiring{{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}}}
	splice := nl.Wiring{{pod, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}}}
	if err := links.Add(); err != nil {
		t.Fatal(err)
	}
	w := nl.Wiring{{pod, forbidden}}
	for _, err := range []error{forbidden.Check(pod), forbidden.Del(pod)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("before Add: %v", err)
		}
	}
	for range 2 {
		if err := errors.Join(w.Add(), splice.Add(), w.Check()); err != nil {
			t.Fatal(err)
		}
	}
	other := nl.Forbid{Devs: forbidden.Devs, Addrs: forbidden.Addrs[:1]}
	if err := other.Check(pod); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check of another: %v", err)
	}
	if err := errors.Join((nl.Wiring{{pod, other}}).Add(), other.Check(pod), w.Add(), w.Check()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := errors.Join(w.Del(), splice.Check()); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(w.Add(), links[1:].Del()); err != nil {
		t.Fatal(err)
	}
	if err := w.Check(); err == nil {
		t.Error("Check without a link: no error")
	}
	if err := w.Del(); err != nil {
		t.Error(err)
	}
}
