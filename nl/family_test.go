// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
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
	if rule, want := (nl.Rule{Pref: 1, Table: 7, To: netip.MustParsePrefix("fd00::/8"), Family: nl.IPv4}), "ip -6 rule add pref 1 to fd00::/8 lookup 7"; rule.String() != want {
		t.Errorf("%s, want %s", rule, want)
	}
}

// TestRefusingRule: a rule that refuses has no table, and is another one than a rule with one.
func TestRefusingRule(t *testing.T) {
	n, _ := nltest.NS(t, "node")
	for _, f := range nl.Families {
		r := nl.Rule{Pref: 1025, Family: f, IIF: "veth7e00", Mark: 1 << 29, Mask: 1 << 29, Refuse: true, Protocol: nl.RouteProtocol}
		w := nl.Wiring{{NS: n, Object: r}}
		for range 2 {
			if err := errors.Join(w.Add(), w.Check()); err != nil {
				t.Errorf("%v: %v", f, err)
			}
		}
		r.Refuse, r.Table = false, 7
		if err := r.Check(n); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: a rule with a table: %v", f, err)
		}
		if err := w.Del(); err != nil {
			t.Errorf("%v: %v", f, err)
		}
		if err := w.Check(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: after Del: %v", f, err)
		}
	}
}
