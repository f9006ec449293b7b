// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestIPVlan makes slaves whose names the master's namespace already has.
func TestIPVlan(t *testing.T) {
	nltest.Need(t, "ipvlan")
	host, pod := two(t)
	vpc, _ := nltest.NS(t, "vpc")
	masters := nl.Wiring{
		{host, nl.Veth{Name: "eth0", Peer: "eni0", PeerNS: vpc, MTU: 9001}},
		{host, nl.Veth{Name: "ens6", MAC: nearMAC, Peer: "eni1", PeerNS: vpc, MTU: 9001}},
	}
	if err := masters.Add(); err != nil {
		t.Fatal(err)
	}
	before := nltest.Dump(t, host, pod)
	for _, v := range []nl.IPVlan{
		{Name: "eth0", Master: "ens6", NS: pod},
		{Name: "eth0", Master: "ens6", NS: pod, Mode: "l3", MTU: 1500},
		{Name: "fifteen-bytes15", Master: "ens6", NS: pod, Mode: "l3s", Down: true},
	} {
		w := nl.Wiring{{host, v}}
		if err := w.Check(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Check before Add: %v", err)
		}
		for range 2 {
			if err := errors.Join(w.Add(), w.Check()); err != nil {
				t.Fatal(err)
			}
		}
		l, err := pod.LinkByName(v.Name)
		if err != nil || l.MAC != nearMAC || l.Up == v.Down {
			t.Errorf("%+v, %v", l, err)
		}
		// Master and slave have one MAC address. LinkByMAC must find the master.
		if l, err := host.LinkByMAC(t.Context(), nearMAC); err != nil || l.Name != "ens6" {
			t.Errorf("%s, %v", l.Name, err)
		}
		for range 2 {
			if err := w.Del(); err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff(before, nltest.Dump(t, host, pod)); d != "" {
			t.Errorf("%s: -before +after\n%s", v, d)
		}
	}
	for _, v := range []nl.IPVlan{{Name: "eth0", Master: "absent", NS: pod},
		{Name: "eth0", Master: "ens6", NS: pod, Mode: "l4"}} {
		if err := (nl.Wiring{{host, v}}).Add(); err == nil {
			t.Errorf("%s: no error", v)
		}
	}
}
