// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// A lane has a sender, a router with the links a and b, and a receiver behind the router.
type lane struct {
	router, sender, receiver *nl.NS
	from, to                 map[nl.Family]netip.Addr
}

func newLane(t *testing.T) lane {
	t.Helper()
	l := lane{from: map[nl.Family]netip.Addr{nl.IPv4: netip.MustParseAddr("192.0.2.1"),
		nl.IPv6: netip.MustParseAddr("2001:db8::1")}, to: map[nl.Family]netip.Addr{
		nl.IPv4: netip.MustParseAddr("198.51.100.1"), nl.IPv6: netip.MustParseAddr("2001:db8:1::1")}}
	for _, made := range []struct {
		n    **nl.NS
		name string
	}{{&l.router, "router"}, {&l.sender, "sender"}, {&l.receiver, "receiver"}} {
		n, err := nl.Make(made.name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		*made.n = n
	}
	w := nl.Wiring{{NS: l.router, Object: nl.Veth{Name: "a", Peer: "eth0", PeerNS: l.sender}},
		{NS: l.router, Object: nl.Veth{Name: "b", Peer: "eth0", PeerNS: l.receiver}}}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	nltest.Shell(t, l.router, `sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
		net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.a.rp_filter=0 net.ipv4.conf.b.rp_filter=0
		ip addr add 192.0.2.254/24 dev a; ip addr add 198.51.100.254/24 dev b
		ip addr add 2001:db8::254/64 dev a nodad; ip addr add 2001:db8:1::254/64 dev b nodad`)
	nltest.Shell(t, l.sender, `ip addr add 192.0.2.1/24 dev eth0; ip route add default via 192.0.2.254
		ip addr add 2001:db8::1/64 dev eth0 nodad; ip -6 route add default via 2001:db8::254`)
	nltest.Shell(t, l.receiver, `ip addr add 198.51.100.1/24 dev eth0; ip route add default via 198.51.100.254
		ip addr add 2001:db8:1::1/64 dev eth0 nodad; ip -6 route add default via 2001:db8:1::254`)
	return l
}

// send sends a datagram from the sender to the receiver.
func (l lane) send(t *testing.T, f nl.Family) {
	t.Helper()
	if err := l.sender.Do(func() error {
		c, err := net.Dial("udp", net.JoinHostPort(l.to[f].String(), "9"))
		if err != nil {
			return err
		}
		_, err = c.Write([]byte("hello"))
		return errors.Join(err, c.Close())
	}); err != nil {
		t.Fatal(err)
	}
}

// TestTap: a Tap sees a packet with its address first where the packet arrives, and then where it leaves. It sees no
// packets of other addresses.
func TestTap(t *testing.T) {
	nltest.Need(t, "root", "netns")
	l := newLane(t)
	for _, f := range nl.Families {
		tap, err := l.router.Tap([]netip.Addr{l.from[f]}, "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		others, err := l.router.Tap([]netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")},
			"a", "b")
		if err != nil {
			t.Fatal(err)
		}
		var seen []nl.Sighting
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && way(seen) != "a in, b out"; {
			l.send(t, f)
			time.Sleep(50 * time.Millisecond)
			seen = tap.Seen() // more than one packet may have passed
			seen = seen[:min(len(seen), 2)]
		}
		if got := way(seen); got != "a in, b out" || seen[1].Size == 0 {
			t.Errorf("%s: saw %q %v", f, got, seen)
		}
		if got := others.Seen(); len(got) > 0 {
			t.Errorf("%s: saw packets of other addresses: %v", f, got)
		}
		if err := errors.Join(tap.Close(), others.Close()); err != nil {
			t.Error(err)
		}
	}
}

func way(seen []nl.Sighting) string {
	var words []string
	for _, s := range seen {
		direction := " in"
		if s.Out {
			direction = " out"
		}
		words = append(words, s.Link+direction)
	}
	return strings.Join(words, ", ")
}

// TestVerdicts finds the rule that drops a packet, and the policy of its chain. After Close, the table of the Tap is
// gone.
func TestVerdicts(t *testing.T) {
	nltest.Need(t, "root", "netns", "owner")
	l := newLane(t)
	nltest.Shell(t, l.router, `nft add table inet other; nft add chain inet other forward \
		'{ type filter hook forward priority 0; policy drop; }'
		nft add rule inet other forward ip daddr 198.51.100.1 udp dport 9 drop`)
	for f, want := range map[nl.Family]string{
		nl.IPv4: "the rule with the handle 2 of the chain forward of the table inet other",
		nl.IPv6: "the policy of the chain forward of the table inet other",
	} {
		v, err := l.router.Verdicts([]netip.Addr{l.from[f]})
		if err != nil {
			t.Fatal(err)
		}
		var drops []nl.Dropper
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && len(drops) == 0; {
			l.send(t, f)
			time.Sleep(50 * time.Millisecond)
			drops = v.Drops()
		}
		if len(drops) != 1 || drops[0].String() != want {
			t.Errorf("%s: got %v, want %s", f, drops, want)
		}
		v.Close()
		if tables := nltest.Shell(t, l.router, "nft list tables"); strings.Contains(tables, "trace") {
			t.Errorf("left a table: %s", tables)
		}
	}
}

// TestForwards: Forwards returns the link to which the kernel forwards a packet. The kernel may also refuse the source,
// or not forward at all.
func TestForwards(t *testing.T) {
	nltest.Need(t, "root", "netns")
	l := newLane(t)
	by := func(iif string) (string, error) { return ask.Forwards(l.router, iif, l.from[nl.IPv4], l.to[nl.IPv4]) }
	if dev, err := by("a"); err != nil || dev != "b" {
		t.Errorf("got %q, %v", dev, err)
	}
	nltest.Shell(t, l.router, "ip link add c type veth peer name far; ip link set dev c up; sysctl "+
		"-qw net.ipv4.conf.c.rp_filter=1")
	if dev, err := by("c"); !errors.Is(err, ask.ErrSource) {
		t.Errorf("got %q, %v", dev, err)
	}
	nltest.Shell(t, l.router, "sysctl -qw net.ipv4.ip_forward=0")
	if dev, err := by("a"); err != nil || dev != "" {
		t.Errorf("got %q, %v", dev, err)
	}
}

// TestAnswered: the router has answered the sender, but an absent host has not.
func TestAnswered(t *testing.T) {
	nltest.Need(t, "root", "netns")
	l := newLane(t)
	for _, x := range []struct{ router, absent string }{{"192.0.2.254", "192.0.2.9"},
		{"2001:db8::254", "2001:db8::9"}} {
		router, absent, is := netip.MustParseAddr(x.router), netip.MustParseAddr(x.absent), false
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && !is; time.Sleep(10 * time.Millisecond) {
			l.send(t, nl.FamilyOf(router))
			var err error
			if is, err = ask.Answered(l.sender, "eth0", router); err != nil {
				t.Fatal(err)
			}
		}
		if no, err := ask.Answered(l.sender, "eth0", absent); !is || no || err != nil {
			t.Errorf("%s: %v, %s: %v, %v", router, is, absent, no, err)
		}
	}
	if _, err := ask.Answered(l.sender, "eth9", l.from[nl.IPv4]); err == nil {
		t.Error("no error without the link")
	}
}

// TestMake: Make makes a namespace that other processes can open.
func TestMake(t *testing.T) {
	nltest.Need(t, "root", "netns")
	n, err := nl.Make("pod")
	if err != nil {
		t.Fatal(err)
	}
	path := n.Path()
	if other, err := nl.Open("other", path); err != nil || !n.IsAt(path) {
		t.Errorf("%v", err)
	} else if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil && n.IsAt(path) {
		t.Error("it is still there")
	}
}
