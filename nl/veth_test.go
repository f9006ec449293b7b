// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestNoRA makes a pod send router advertisements through two pairs. The end "other" on the node accepts the
// advertisements, and gets an address and a default route. The end "deaf", with NoRA, must get neither. In the case "a
// router", the node forwards, and accept_ra is 2.
func TestNoRA(t *testing.T) {
	t.Run("a host", func(t *testing.T) { noRA(t, false) })
	t.Run("a router", func(t *testing.T) { noRA(t, true) })
}

func noRA(t *testing.T, forwards bool) {
	host, pod := two(t)
	if forwards {
		if err := (nl.Wiring{
			{NS: host, Object: nl.Sysctl{Key: "net/ipv6/conf/default/accept_ra", Value: "2"}},
			{NS: host, Object: nl.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"}},
		}).Add(); err != nil {
			t.Fatal(err)
		}
	}
	deaf := nl.Veth{Name: "deaf", Peer: "eth1", PeerNS: pod, NoLinkLocal: true, NoRA: true}
	other := nl.Veth{Name: "other", Peer: "eth2", PeerNS: pod}
	if err := (nl.Wiring{
		// Without this, new addresses cannot be used at once.
		{NS: pod, Object: nl.Sysctl{Key: "net/ipv6/conf/default/accept_dad", Value: "0"}},
		{NS: host, Object: deaf}, {NS: host, Object: other},
	}).Add(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); addrs(t, host, "other") == 0 || defaults(t, host, "other") == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no host is taken for a router, and so this test cannot tell")
		}
		if advertise(t, pod, "eth1") {
			advertise(t, pod, "eth2")
		}
	}
	if a, r := addrs(t, host, "deaf"), defaults(t, host, "deaf"); a+r > 0 {
		t.Errorf("it has %d addresses and %d default routes", a, r)
	}
	other.NoLinkLocal, other.NoRA = true, true // an earlier release has made the pair without these
	if err := other.Check(host); err != nil {
		t.Errorf("Check of the other: %v", err)
	}
}

// advertise sends a router advertisement (RFC 4861, section 4.2) through a link, after the link has got an address.
func advertise(t *testing.T, n *nl.NS, link string) (sent bool) {
	t.Helper()
	l, err := n.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	err = n.Do(func() error {
		s, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		if err := unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			return err
		}
		const typ, lifetime = 134, 60
		all := netip.MustParseAddr("ff02::1")
		return unix.Sendto(s, []byte{typ, 0, 0, 0, 64, 0, 0, lifetime, 0, 0, 0, 0, 0, 0, 0, 0}, 0,
			&unix.SockaddrInet6{Addr: all.As16(), ZoneId: uint32(l.Index)})
	})
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENETUNREACH) {
		t.Fatal(err)
	}
	return err == nil
}

// defaults counts the IPv6 default routes through a link.
func defaults(t *testing.T, n *nl.NS, dev string) (count int) {
	t.Helper()
	routes, err := n.Routes(nl.RouteFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dev == dev && r.Dst == netip.PrefixFrom(netip.IPv6Unspecified(), 0) {
			count++
		}
	}
	return count
}

func addrs(t *testing.T, n *nl.NS, dev string) int {
	t.Helper()
	found, err := n.Addrs(dev)
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// TestNoIPv6 makes a pair whose MTU is too small for IPv6 (RFC 8200, section 5). The link then has no IPv6 settings,
// and Add and Check succeed without them.
func TestNoIPv6(t *testing.T) {
	host, pod := two(t)
	v := nl.Veth{Name: "veth0", Peer: "eth1", PeerNS: pod, MTU: 1279, Alias: "small", NoLinkLocal: true, NoRA: true}
	if err := (nl.Wiring{{NS: host, Object: v}}).Add(); err != nil {
		t.Fatal(err)
	}
	if err := v.Check(host); err != nil {
		t.Error(err)
	}
}
