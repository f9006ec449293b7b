// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

func limits(egress bool) (one, other nl.Limit) {
	one = nl.Limit{Devs: []string{"eth0", "eth1"}, Egress: egress, Rate: 1_000_000, Burst: 200_000}
	other = one
	other.Rate = math.MaxUint32 + 1 // netlink has another attribute for a rate of more than 32 bits
	return one, other
}

func TestLimitString(t *testing.T) {
	const want = `tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress pref 73 handle 2 bpf action police rate 1000000bps burst 200000 conform-exceed drop/continue index 491873167 # packets that the namespace itself sends
	tc qdisc add dev eth1 clsact; tc filter add dev eth1 egress pref 73 handle 2 bpf action police rate 1000000bps burst 200000 conform-exceed drop/continue index 491873167 # packets that the namespace itself sends`
	one, _ := limits(true)
	if d := cmp.Diff(want, one.String()); d != "" {
		t.Error(d)
	}
}

// TestLimit adds a Limit twice, replaces a Limit that differs, and deletes the Limit twice. The same links have other
// filters.
func TestLimit(t *testing.T) {
	nltest.Need(t, "police")
	host, pod := two(t)
	beside := nl.Wiring{
		{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}},
		{pod, forbidden}, {pod, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}},
	}
	if err := beside.Add(); err != nil {
		t.Fatal(err)
	}
	for _, egress := range []bool{false, true} {
		one, other := limits(egress)
		w := nl.Wiring{{pod, one}}
		for _, err := range []error{one.Check(pod), one.Del(pod)} {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("before Add: %v", err)
			}
		}
		for range 2 {
			if err := errors.Join(w.Add(), w.Check()); err != nil {
				t.Fatal(err)
			}
		}
		if err := other.Check(pod); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Check of another: %v", err)
		}
		if err := errors.Join((nl.Wiring{{pod, other}}).Add(), other.Check(pod), w.Add(), w.Check()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := w.Del(); err != nil {
				t.Error(err)
			}
		}
		if !errors.Is(one.Check(pod), fs.ErrNotExist) {
			t.Error("it is still there")
		}
	}
	if err := beside.Check(); err != nil {
		t.Error(err)
	}
}
