// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

var forbidden = nl.Forbid{Devs: []string{"eth0", "eth1"}, Addrs: []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}}

func TestForbidString(t *testing.T) {
	const want = `tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress pref 72 handle 2 bpf direct-action # drop what is to 169.254.169.254, fd00:ec2::254
	tc qdisc add dev eth1 clsact; tc filter add dev eth1 egress pref 72 handle 2 bpf direct-action # drop what is to 169.254.169.254, fd00:ec2::254`
	if d := cmp.Diff(want, forbidden.String()); d != "" {
		t.Error(d)
	}
}

// TestForbid adds, adds again, replaces what differs, and deletes twice, beside a
// splice of the same links; also after a link has gone.
func TestForbid(t *testing.T) {
	host, pod := two(t)
	links := nl.Wiring{{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}}, {host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}}}
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
