// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestAltName adds, checks and deletes an alternative name, each twice. While a link has the name, Add cannot give the
// name to another link. If the MAC address of the link AltName.Dev is not AltName.MAC, Add does not find the link.
func TestAltName(t *testing.T) {
	n, _ := nltest.NS(t, "node")
	nltest.Shell(t, n, "ip link add first address 02:00:00:00:00:01 type veth peer name far")
	a := nl.AltName{Dev: "first", MAC: "02:00:00:00:00:01", Name: "alias"}
	before := nltest.Dump(t, n)
	none := func(name string, err error) {
		t.Helper()
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2 {
		none("Check before", a.Check(n))
		none("Del before", a.Del(n))
		for range 2 {
			if err := (nl.Wiring{{NS: n, Object: a}}).Add(); err != nil {
				t.Fatal(err)
			}
			if err := a.Check(n); err != nil {
				t.Error(err)
			}
		}
		other := nl.AltName{Dev: "far", Name: a.Name}
		far, err := n.LinkByName("far")
		if other.MAC = far.MAC; err != nil {
			t.Fatal(err)
		}
		if err := (nl.Wiring{{NS: n, Object: other}}).Add(); !errors.Is(err, fs.ErrExist) {
			t.Errorf("of another link: %v", err)
		}
		if err := a.Del(n); err != nil {
			t.Fatal(err)
		}
		if after := nltest.Dump(t, n); after != before {
			t.Errorf("afterwards:\n%s", after)
		}
	}
	a.MAC = "02:00:00:00:00:02"
	none("Add by the name of another link", a.Add(n))
}
