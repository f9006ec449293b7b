// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestHostRoutes: HostRoutes returns only routes to single addresses in the main table, of both families.
func TestHostRoutes(t *testing.T) {
	host, _ := nltest.NS(t, "host")
	nltest.Shell(t, host, `
		ip route add 10.0.1.5/32 dev lo
		ip -6 route add 2001:db8::5/128 dev lo
		ip route add 10.0.2.0/24 dev lo
		ip route add 10.0.1.6/32 dev lo table 1000`)
	got, err := host.HostRoutes()
	want := []netip.Addr{netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("2001:db8::5")}
	if err != nil || !slices.Contains(got, want[0]) || !slices.Contains(got, want[1]) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, a := range got {
		if has, err := host.HasHostRoute(a); err != nil || !has {
			t.Errorf("HasHostRoute(%s): %v, %v", a, has, err)
		}
	}
	if slices.Contains(got, netip.MustParseAddr("10.0.1.6")) {
		t.Errorf("%v: 10.0.1.6 is in another table", got)
	}
}
