// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestFurther: changes of other attachments' links do not change whether an attachment is a further one.
func TestFurther(t *testing.T) {
	a, b := nl.PodGroup([]byte{1, 2, 3, 4}), nl.PodGroup([]byte{1, 2, 4, 4})
	fa, fb := nl.FurtherGroup(a), nl.FurtherGroup(b)
	ca, cb := nl.CardGroup(a), nl.CardGroup(b)
	for _, c := range []struct {
		groups []uint32
		want   bool // whether a is a further attachment
	}{
		{nil, false},
		{[]uint32{0, 1, 1 << 31}, false},
		{[]uint32{0, a}, false},
		{[]uint32{0, b}, true},
		{[]uint32{0, fb}, false}, // the pod's first attachment is deleted
		{[]uint32{a, b}, false},
		{[]uint32{a, fb}, false},
		{[]uint32{fa, b}, true},
		{[]uint32{fa}, true},
		{[]uint32{fa, fb}, true},
		{[]uint32{cb}, true}, // a first attachment with a card: its ADD was killed before the pair was made
		{[]uint32{ca, b}, false},
		{[]uint32{nl.CardGroup(fb)}, false},
	} {
		var links []nl.Link
		for _, g := range c.groups {
			links = append(links, nl.Link{Group: g})
		}
		if got := nl.Further(links, a); got != c.want {
			t.Errorf("with links in the groups %v: %v", c.groups, got)
		}
	}
	for group, want := range map[uint32]bool{0: false, 72: false, a: false, fa: false, b: true, fb: true, ca: false,
		cb: true, nl.CardGroup(fb): true, 76<<24 | 1: false} {
		for _, own := range []uint32{a, fa} {
			if nl.Foreign(group, own) != want {
				t.Errorf("Foreign(%d, %d) is %v", group, own, !want)
			}
		}
	}
	seen := map[uint32]bool{}
	for _, own := range []uint32{a, b} {
		for i := range 128 {
			table := nl.FurtherTable(own, i)
			if seen[table] || !nl.IsFurtherTable(table) || table != nl.FurtherTable(nl.FurtherGroup(own), i) {
				t.Errorf("table %d of NIC %d of group %d", table, i, own)
			}
			seen[table] = true
		}
	}
	for _, table := range []uint32{0, 72, 253, 254, 255, 1<<31 - 1} {
		if nl.IsFurtherTable(table) {
			t.Errorf("table %d is taken for one of a further NIC", table)
		}
	}
}

// TestApart: an Addr with Apart adds no route, and the kernel does not choose it as a source.
func TestApart(t *testing.T) {
	n, _ := nltest.NS(t, "pod")
	prefix := netip.MustParsePrefix
	add := func(objects ...nl.Object) {
		t.Helper()
		for _, o := range objects {
			if err := (nl.Wiring{{NS: n, Object: o}}).Add(); err != nil {
				t.Fatal(err)
			}
		}
	}
	other, _ := nltest.NS(t, "other")
	add(nl.Veth{Name: "a", Peer: "a", PeerNS: other}, nl.Veth{Name: "b", Peer: "b", PeerNS: other})
	addrs := []nl.Object{
		nl.Addr{Prefix: prefix("10.0.1.2/24"), Dev: "a", Apart: true},
		nl.Addr{Prefix: prefix("fd00:1::2/64"), Dev: "a", NoDAD: true, Apart: true},
		nl.Addr{Prefix: prefix("10.0.2.2/24"), Dev: "b"},
		nl.Addr{Prefix: prefix("fd00:2::2/64"), Dev: "b", NoDAD: true},
	}
	for range 2 {
		add(addrs...)
	}
	d := nltest.Dump(t, n)
	for _, want := range []string{
		"ip addr add 10.0.1.2/24 dev a scope link noprefixroute\n",
		"ip addr add fd00:1::2/64 dev a nodad preferred_lft 0 noprefixroute\n",
		"ip addr add 10.0.2.2/24 dev b\n", "ip addr add fd00:2::2/64 dev b nodad\n", "ip route add 10.0.2.0/24 dev b",
		"ip -6 route add fd00:2::/64 dev b",
	} {
		if !strings.Contains(d, want) {
			t.Errorf("want %q in\n%s", want, d)
		}
	}
	if strings.Contains(d, "10.0.1.0/24") || strings.Contains(d, "fd00:1::/64") {
		t.Errorf("a route to the subnet of an address apart:\n%s", d)
	}
	found, err := n.Addrs("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range found {
		if a.Prefix.Addr().IsGlobalUnicast() && (!a.Apart || a.Dynamic) {
			t.Errorf("%+v", a)
		}
	}
	var w nl.Wiring
	for _, o := range addrs {
		w = append(w, nl.Step{NS: n, Object: o})
	}
	if err := w.Check(); err != nil {
		t.Error(err)
	}
	if err := w.Del(); err != nil {
		t.Error(err)
	}
}

// TestDelFurther: DelFurther deletes the rules and routes of one attachment, and nothing else.
func TestDelFurther(t *testing.T) {
	n, _ := nltest.NS(t, "pod")
	own, other := nl.PodGroup([]byte{1, 2, 3, 4}), nl.PodGroup([]byte{1, 2, 4, 4})
	wiring := func(group uint32, protocol int) (w nl.Wiring) {
		for i, a := range []string{"10.0.1.2/32", "fd00:1::2/128"} {
			p, table := netip.MustParsePrefix(a), nl.FurtherTable(group, i+1)
			for _, o := range []nl.Object{
				nl.Route{Dst: p, Type: "prohibit", Table: table, Protocol: protocol},
				nl.Rule{Pref: 1024, From: p, Table: table, Protocol: protocol},
			} {
				w = append(w, nl.Step{NS: n, Object: o})
			}
		}
		return w
	}
	mine, others := wiring(own, nl.RouteProtocol), append(wiring(other, nl.RouteProtocol), wiring(own+1000, 4)...)
	before := nltest.Dump(t, n)
	if err := others.Add(); err != nil {
		t.Fatal(err)
	}
	theirs := nltest.Dump(t, n)
	for range 2 {
		if err := mine.Add(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := n.DelFurther(nl.FurtherGroup(own)); err != nil {
				t.Fatal(err)
			}
			if d := nltest.Dump(t, n); d != theirs {
				t.Errorf("left\n%s\nwant\n%s", d, theirs)
			}
		}
	}
	if err := n.DelFurther(other); err != nil {
		t.Fatal(err)
	}
	if err := others.Del(); err != nil {
		t.Fatal(err)
	}
	if d := nltest.Dump(t, n); d != before {
		t.Errorf("left\n%s\nwant\n%s", d, before)
	}
}
