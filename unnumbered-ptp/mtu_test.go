// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestMTUChanges: the MTU of hostInterface changes. A running pod keeps its MTU. CHECK and another ADD succeed.
func TestMTUChanges(t *testing.T) {
	for _, eni := range []int{9001, 3000} { // with 3000 the loop's routes have an MTU of their own
		f, p := preparedTable(t)
		f.add(p.NS, nl.Up{Dev: "eth0", MTU: eni})
		must(t, f.ADD(p))
		during := nltest.Dump(t, f.node, p.NS)
		for _, mtu := range []int{1500, 9001, 1400} {
			f.add(f.node, nl.Up{Dev: "eth0", MTU: mtu})
			must(t, f.CHECK(p))
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			if i := p.result.Interfaces[1]; i.Mtu != 9001 {
				t.Errorf("the result says %+v", i)
			}
			f.add(f.node, nl.Up{Dev: "eth0", MTU: 9001})
			same(t, "another ADD", during, nltest.Dump(t, f.node, p.NS))
		}
		f.add(p.NS, nl.Up{Dev: "eth0", MTU: 9001}) // the MTU is larger than at the ADD, or the same
		must(t, f.CHECK(p))
		must(t, f.ADD(p))
	}
}

// TestMTUDiffers: CHECK fails if the MTUs of the pair's ends differ, or if the MTU is not the configured one.
func TestMTUDiffers(t *testing.T) {
	f, p := preparedTable(t)
	must(t, f.ADD(p))
	veth := p.result.Interfaces[1].Name
	tells := func(want string) {
		t.Helper()
		if err := f.CHECK(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	p.request.Config.MTU = 1500
	tells("mtu of " + veth + " is 9001, not 1500")
	p.request.Config.MTU = 0
	f.add(f.node, nl.Up{Dev: veth, MTU: 1500}) // the other end would send larger packets than it accepts
	tells("mtu of eth1 is 9001, not 1500")
	f.add(f.node, nl.Up{Dev: veth, MTU: 9001})
	must(t, f.CHECK(p))
}
