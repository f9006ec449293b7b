// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

func TestFamily(t *testing.T) {
	for text, want := range map[string]nl.Family{"10.0.0.1": nl.IPv4, "fd00::1": nl.IPv6, "::ffff:10.0.0.1": nl.IPv6} {
		if got := nl.FamilyOf(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is of %s, want %s", text, got, want)
		}
	}
	if f := nl.FamilyOf(netip.Addr{}); f != 0 || f.String() != "any family" {
		t.Errorf("no address is of %s", f)
	}
	for f, want := range map[nl.Family]string{nl.IPv4: "0.0.0.0/0", nl.IPv6: "::/0"} {
		if got := f.Everywhere(); got.String() != want {
			t.Errorf("%s: %s, want %s", f, got, want)
		}
	}
	if rule, want := (nl.Rule{Pref: 1, Table: 7, To: netip.MustParsePrefix("fd00::/8"),
		Family: nl.IPv4}), "ip -6 rule add pref 1 to fd00::/8 lookup 7"; rule.String() != want {
		t.Errorf("%s, want %s", rule, want)
	}
}
