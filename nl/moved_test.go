// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const cardMAC = "06:00:00:00:00:07"

// A bay is a node with a network card, the pod that will get the card, and a wire between the card and the VPC.
type bay struct {
	*testing.T
	node, pod, vpc *nl.NS
	path           string // of the pod's namespace
}

// newBay makes the three namespaces. The node has its own eth0, and the card is its link ens6.
func newBay(t *testing.T) bay {
	t.Helper()
	b := bay{T: t}
	b.node, _ = nltest.NS(t, "node")
	b.vpc, _ = nltest.NS(t, "vpc")
	b.pod, b.path = nltest.NS(t, "pod")
	b.must(nl.Wiring{
		{NS: b.node, Object: nl.Veth{Name: "eth0", MAC: nearMAC, Peer: "eni0", PeerNS: b.vpc, MTU: 9001}},
		{NS: b.vpc, Object: nl.Veth{Name: "eni1", MAC: farMAC, Peer: "ens6", PeerMAC: cardMAC, PeerNS: b.node,
			PeerDown: true, MTU: 9001}},
	}.Add())
	return b
}

func (b bay) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// moved returns the MovedLink that moves the card into the pod.
func (b bay) moved() nl.MovedLink {
	return nl.MovedLink{Name: "eth0", MAC: cardMAC, NS: b.pod, Home: "ens6", MTU: 9001,
		Group: nl.PodGroup([]byte("pod!"))}
}

// same checks that a new dump of node and pod is equal to the dump before.
func (b bay) same(what, before string) {
	b.Helper()
	if d := cmp.Diff(before, nltest.Dump(b, b.node, b.pod)); d != "" {
		b.Errorf("%s: -before +after\n%s", what, d)
	}
}

func TestMovedLinkString(t *testing.T) {
	pod := &nl.NS{Name: "pod"}
	for want, v := range map[string]nl.MovedLink{
		"ip link set ens6 netns pod name eth0 mtu 9001 group 7 up": {Name: "eth0", MAC: cardMAC, NS: pod, Home: "ens6",
			MTU: 9001, Group: 7},
		"ip link set ens6 netns pod name eth0": {Name: "eth0", MAC: cardMAC, NS: pod, Home: "ens6",
			Down: true},
		"ip link set 06:00:00:00:00:07 name eth0 up": {Name: "eth0", MAC: cardMAC},
	} {
		if got := v.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestMovedLink adds, checks and deletes a MovedLink, each twice. The card has addresses and routes.
func TestMovedLink(t *testing.T) {
	b := newBay(t)
	for _, up := range []bool{false, true} {
		if up { // the end of the last slave leaves a card in this state
			nltest.Shell(b, b.node, "ip link set ens6 up; ip addr add 192.0.2.9/24 dev ens6; ip link set ens6 down")
		}
		v := b.moved()
		v.Down = up
		w := nl.Wiring{
			{NS: b.node, Object: v},
			{NS: b.pod, Object: nl.Up{Dev: "eth0"}},
			{NS: b.pod, Object: nl.Addr{Prefix: netip.MustParsePrefix("10.0.1.9/24"), Dev: "eth0"}},
			{NS: b.pod, Object: nl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.0.1.1"),
				Dev: "eth0"}},
		}
		if err := w.Check(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Check before Add: %v", err)
		}
		for range 2 {
			b.must(errors.Join(w.Add(), w.Check()))
		}
		l, err := b.pod.LinkByName("eth0")
		b.must(err)
		if l.MAC != cardMAC || l.MTU != 9001 || l.Group != v.Group || !l.Up {
			t.Errorf("in the pod: %+v", l)
		}
		if l, err := b.node.FindMAC(cardMAC); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("on the node: %+v, %v", l, err)
		}
		for range 2 {
			b.must(w.Del())
		}
		if l, err := b.node.FindMAC(cardMAC); err != nil || l.Name != "ens6" || l.Up || l.Group != 0 {
			t.Errorf("on the node: %+v, %v", l, err)
		}
		if dump := nltest.Dump(t, b.node, b.pod); strings.Contains(dump, "10.0.1.") ||
			strings.Contains(dump, "192.0.2.") {
			t.Errorf("addresses or routes are left:\n%s", dump)
		}
	}
}

func TestMovedLinkCheck(t *testing.T) {
	b := newBay(t)
	w := nl.Wiring{{NS: b.node, Object: b.moved()}}
	b.must(w.Add())
	for _, tt := range []struct{ change, undo, want string }{
		{"ip link set eth0 mtu 1500", "ip link set eth0 mtu 9001", "mtu is 1500, not 9001"},
		{"ip link set eth0 down", "ip link set eth0 up", "the link is down"},
		{"ip link set eth0 down; ip link set eth0 name x up", "ip link set x down; ip link set x name eth0 up",
			"is x, not eth0"},
	} {
		nltest.Shell(b, b.pod, tt.change)
		for what, err := range map[string]error{"Check": w.Check(), "Add": w.Add()} {
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %s: %v, want %q", tt.change, what, err, tt.want)
			}
		}
		nltest.Shell(b, b.pod, tt.undo)
		b.must(w.Check())
	}
	b.must(w.Del())
	if err := w.Check(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check after Del: %v", err)
	}
}

// TestMovedLinkRefused: a failing Add changes nothing.
func TestMovedLinkRefused(t *testing.T) {
	b := newBay(t)
	for name, tt := range map[string]struct {
		prepare, undo string
		in            *nl.NS
		change        func(*nl.MovedLink)
		want          error
	}{
		"the name is taken": {"ip link add eth0 type veth peer x", "ip link del eth0", b.pod, nil, fs.ErrExist},
		"no card":           {change: func(v *nl.MovedLink) { v.MAC = "06:00:00:00:00:08" }, want: fs.ErrNotExist},
		"no MAC address":    {change: func(v *nl.MovedLink) { v.MAC = "" }},
		"no name":           {change: func(v *nl.MovedLink) { v.Name = "" }},
		"the MTU":           {change: func(v *nl.MovedLink) { v.MTU = 1 << 20 }, want: syscall.EINVAL},
		"the pod is gone":   {change: func(v *nl.MovedLink) { v.NS = nil }, want: fs.ErrNotExist},
		"a bridge": {"ip link add br0 type bridge; ip link set ens6 master br0", "ip link del br0", b.node,
			nil, nl.ErrShared},
	} {
		t.Run(name, func(t *testing.T) {
			b := b
			b.T = t
			if tt.prepare != "" {
				nltest.Shell(b, tt.in, tt.prepare)
				defer nltest.Shell(b, tt.in, tt.undo)
			}
			before := nltest.Dump(t, b.node, b.pod)
			v := b.moved()
			if tt.change != nil {
				tt.change(&v)
			}
			err := nl.Wiring{{NS: b.node, Object: v}}.Add()
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			b.same("Add failed", before)
		})
	}
}

// TestMovedLinkMaster: as long as a card has slaves, Add refuses it.
func TestMovedLinkMaster(t *testing.T) {
	nltest.Need(t, "ipvlan")
	b := newBay(t)
	other, _ := nltest.NS(t, "other")
	for _, mode := range []string{"l2", "l3", "l3s"} {
		slave := nl.Wiring{{NS: b.node, Object: nl.IPVlan{Name: "eth0", Master: "ens6", NS: other, Mode: mode}}}
		b.must(slave.Add())
		before := nltest.Dump(t, b.node, b.pod)
		w := nl.Wiring{{NS: b.node, Object: b.moved()}}
		if err := w.Add(); !errors.Is(err, nl.ErrShared) || !strings.Contains(err.Error(), "ens6") {
			t.Errorf("%s: %v, want %v", mode, err, nl.ErrShared)
		}
		b.same("Add was refused", before)
		b.must(errors.Join(slave.Check(), slave.Del(), w.Add(), w.Check()))
		b.must(w.Del())
		b.must(errors.Join(slave.Add(), slave.Check(), slave.Del()))
	}
}

// TestMovedLinkName: Del moves the card back, even if another link of the node now has the card's former name, or if
// this name is not known.
func TestMovedLinkName(t *testing.T) {
	const byMAC = "enx060000000007"
	b := newBay(t)
	for _, tt := range []struct{ name, home, prepare, want string }{
		{"eth0", "ens6", "", "ens6"},
		{"eth1", "ens6", "", "ens6"},
		{"eth0", "ens6", "ip link add ens6 type veth peer x", byMAC},
		{"eth1", "ens6", "ip link add ens6 type veth peer x", byMAC},
		{"eth0", "", "", byMAC},
		{"net7", "", "", byMAC},
		{"ens6", "ens6", "", "ens6"},
		{byMAC, "", "", byMAC},
	} {
		v := b.moved()
		v.Name, v.Home = tt.name, tt.home
		b.must(v.Add(b.node))
		if tt.prepare != "" {
			nltest.Shell(b, b.node, tt.prepare)
		}
		b.must(v.Del(b.node))
		l, err := b.node.FindMAC(cardMAC)
		if err != nil || l.Name != tt.want {
			t.Errorf("%+v: %s, %v", tt, l.Name, err)
		}
		if tt.prepare != "" {
			nltest.Shell(b, b.node, "ip link del ens6")
		}
		if l.Name != "ens6" {
			nltest.Shell(b, b.node, "ip link set "+l.Name+" name ens6")
		}
	}
}

// TestMovedLinkReturned: the pod's namespace has ended, so the kernel has moved the card to the node. Del finds the
// card there.
func TestMovedLinkReturned(t *testing.T) {
	b := newBay(t)
	before := nltest.Dump(t, b.node, b.pod)
	v := b.moved()
	group := fmt.Sprint(" group ", v.Group)
	for _, ns := range []*nl.NS{nil, b.pod} { // the namespace is gone, or its path leads to a new namespace
		v.NS = ns
		for range 2 {
			for _, name := range []string{"dev9", "ens6"} {
				nltest.Shell(b, b.node, "ip link set ens6 name tmp0; ip link set tmp0 name "+name+group)
				b.must(v.Del(b.node))
				b.same("Del after "+name, before)
				if err := v.Del(b.node); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("Del again: %v", err)
				}
			}
		}
		// The card has slaves of another pod: it must stay up.
		nltest.Shell(b, b.node, "ip link set ens6 name dev9"+group+" up")
		b.must(v.Del(b.node))
		if l, err := b.node.FindMAC(cardMAC); err != nil || !l.Up || l.Group != 0 {
			t.Errorf("%+v, %v", l, err)
		}
		nltest.Shell(b, b.node, "ip link set dev9 down; ip link set dev9 name ens6")
	}
	// The group is that of another attachment, so Del does not find the card.
	b.must(b.moved().Add(b.node))
	v = b.moved()
	v.Group++
	if err := v.Del(b.node); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Del of another's: %v", err)
	}
	b.must(b.moved().Check(b.node))
	b.must(b.moved().Del(b.node))
	b.same("Del", before)
}

// TestMovedLinkHostile: pods change their links before Del.
func TestMovedLinkHostile(t *testing.T) {
	b := newBay(t)
	before := nltest.Dump(t, b.node)
	for name, script := range map[string]string{
		"lo has its address": "ip link set lo down; ip link set lo address 06:00:00:00:00:07",
		"another name":       "ip link set eth0 down; ip link set eth0 name eth9; ip link add eth0 type veth peer x",
		"an alternative name": "ip link property add dev eth0 altname eth0a altname ens6 altname " +
			"a-name-that-is-longer-than-sixteen-bytes",
		"its own name as another": "ip link property add dev eth0 altname ens6; ip link set eth0 down; ip link set " +
			"eth0 name eth9",
		"the node's names": "ip link set eth0 down; ip link set eth0 name lo0; ip link property add dev lo0 altname " +
			"eth0",
		"the default group": "ip link set eth0 group 0",
		"promiscuous":       "ip link set eth0 promisc on allmulticast on arp off",
		"macvlan": "ip link add link eth0 name mac0 type macvlan mode bridge; ip link set mac0 address " +
			"06:00:00:00:00:07 || true",
		"a bridge": "ip link add br0 type bridge; ip link set eth0 master br0",
		"addresses and queueing": "ip addr add 192.0.2.7/24 dev eth0; tc qdisc add dev eth0 clsact; tc qdisc add dev " +
			"eth0 root handle 1: htb || true",
	} {
		t.Run(name, func(t *testing.T) {
			b := b
			b.T = t
			b.pod, b.path = nltest.NS(t, "pod")
			v := b.moved()
			b.must(v.Add(b.node))
			nltest.Shell(b, b.pod, script)
			b.must(v.Del(b.node))
			nltest.Shell(b, b.node, `case $(ip link show ens6) in *altname*) ip link show ens6; exit 1;; esac`)
			if d := cmp.Diff(before, nltest.Dump(t, b.node)); d != "" {
				t.Errorf("-before +after\n%s", d)
			}
			nltest.Shell(b, b.node,
				`case $(ip link show ens6) in *PROMISC*|*ALLMULTI*|*NOARP*|*master*) ip link show ens6; exit 1;; esac
				[ -z "$(tc qdisc show dev ens6 | grep -vE 'noop|noqueue')" ]`)
			if _, err := b.pod.FindMAC(cardMAC); err == nil && name != "lo has its address" && name != "macvlan" {
				t.Error("the pod has the card still")
			}
			// A macvlan keeps the card busy until the kernel has removed the namespace.
			nltest.Shell(b, b.pod, "ip link del mac0 || true")
			b.pod, b.path = nltest.NS(t, "next")
			b.must(b.moved().Add(b.node))
			b.must(b.moved().Del(b.node))
		})
	}
}

// TestMovedLinkFilters: when the card moves to the node, it loses the filters that it had in the pod.
func TestMovedLinkFilters(t *testing.T) {
	nltest.Need(t, "police")
	b := newBay(t)
	v := b.moved()
	// These are all kinds of filters that this package attaches.
	filters := func(n *nl.NS, dev, other string) nl.Wiring {
		return nl.Wiring{
			{NS: n, Object: nl.Limit{Devs: []string{dev}, Egress: true, Rate: 1 << 20, Burst: 1 << 20}},
			{NS: n, Object: nl.Forbid{Devs: []string{dev},
				Addrs: []netip.Addr{netip.MustParseAddr("169.254.169.254")}}},
			{NS: n, Object: nl.Limit{Devs: []string{dev}, Rate: 1 << 20, Burst: 1 << 20}},
			{NS: n, Object: nl.Splice{ENI: dev, Veth: other, MAC: nearMAC}},
		}
	}
	nltest.Shell(b, b.pod, "ip link add eth1 type veth peer p")
	limit, home := filters(b.pod, "eth0", "eth1"), filters(b.node, "ens6", "eth0")
	b.must(nl.Wiring{{NS: b.node, Object: v}}.Add())
	b.must(errors.Join(limit.Add(), limit.Check()))
	b.must(v.Del(b.node))
	nltest.Shell(b, b.node,
		`[ -z "$(tc qdisc show dev ens6 clsact; tc filter show dev ens6 ingress; tc filter show dev ens6 egress)" ]`)

	// When the card moves to the pod, it loses the filters that it had on the node.
	b.must(errors.Join(home.Add(), home.Check()))
	b.must(v.Add(b.node))
	nltest.Shell(b, b.pod, `[ -z "$(tc filter show dev eth0 ingress; tc filter show dev eth0 egress)" ]`)
}
