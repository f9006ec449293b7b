// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestAdvertisement makes a pod send a router advertisement, as any pod with CAP_NET_RAW can. Another pod of the ENI,
// with or without IPv6, must ignore it. The other end of the ENI accepts the advertisement, which proves that the pod
// has sent it.
func TestAdvertisement(t *testing.T) {
	claimed := netip.MustParsePrefix("fd66::/64")
	for name, addrs := range map[string][][2]string{
		"ipv4":       {{"10.0.1.21/24", "10.0.1.1"}},
		"dual-stack": {{"10.0.1.21/24", "10.0.1.1"}, {"fd00:0:0:1::21/64", "fd00:0:0:1::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			liar, from := b.pod(`{}`, [2]string{"10.0.1.20/24", "10.0.1.1"},
				[2]string{"fd00:0:0:1::20/64", "fd00:0:0:1::1"})
			_, err := b.ADD(liar)
			b.must(err)
			r, pod := b.pod(`{}`, addrs...)
			_, err = b.ADD(r)
			b.must(err)
			believes := func(n *nl.NS, dev string) bool {
				t.Helper()
				found, err := n.Addrs(dev)
				b.must(err)
				return slices.ContainsFunc(found, func(a nl.Addr) bool { return claimed.Contains(a.Prefix.Addr()) })
			}
			for deadline := time.Now().Add(time.Minute); !believes(b.vpc, "eni1"); {
				if time.Now().After(deadline) {
					t.Fatal("the message has not arrived")
				}
				b.must(advertise(from, claimed))
			}
			if believes(pod, "eth0") {
				t.Error("the pod believes it")
			}
		})
	}
}

// advertise sends a router advertisement (RFC 4861, section 4.2) from a pod, after the pod has got a link-local
// address.
func advertise(n *nl.NS, prefix netip.Prefix) error {
	message := append([]byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0,
		3, 4, byte(prefix.Bits()), 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x07, 0x08, 0, 0, 0, 0}, prefix.Addr().AsSlice()...)
	eth0, err := n.LinkByName("eth0")
	if err != nil {
		return err
	}
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.BindToDevice(fd, "eth0"))
		if err != nil {
			return err
		}
		err = unix.Sendto(fd, message, 0, &unix.SockaddrInet6{ZoneId: uint32(eth0.Index),
			Addr: netip.MustParseAddr("ff02::1").As16()})
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil
		}
		return err
	})
}
