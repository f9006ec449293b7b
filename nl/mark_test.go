// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestSpliceMark connects to a pod through each of its links, and reads the marks of the accepted sockets.
func TestSpliceMark(t *testing.T) {
	host, pod := two(t)
	link := func(near, far, from, to string) nl.Wiring {
		return nl.Wiring{
			{host, nl.Veth{Name: near, Peer: far, PeerNS: pod}},
			{host, nl.Addr{Prefix: netip.MustParsePrefix(from), Dev: near, NoDAD: true}},
			{pod, nl.Addr{Prefix: netip.MustParsePrefix(to), Dev: far, NoDAD: true}},
		}
	}
	w := append(link("eni", "eth0", "10.0.1.1/24", "10.0.1.2/24"),
		link("veth1", "eth1", "10.0.2.1/24", "10.0.2.2/24")...)
	w = append(w, link("veth2", "eth2", "fd00::1/64", "fd00::2/64")...)
	w = append(w, nl.Step{NS: pod, Object: nl.Sysctl{Key: "net/ipv4/tcp_fwmark_accept", Value: "1"}})
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	marks := marker(t, pod)
	for _, c := range []struct {
		veth string
		mark uint32
		to   string
		want int
	}{
		{"eth1", 0x2000, "10.0.2.2", 0x2000},
		{"eth1", 0x2000, "10.0.1.2", 0},
		{"eth1", 0x40, "10.0.2.2", 0x40},
		{"eth1", 0, "10.0.2.2", 0},
		{"eth2", 0x2000, "fd00::2", 0x2000},
	} {
		s := nl.Wiring{{pod, nl.Splice{ENI: "eth0", Veth: c.veth, MAC: "02:00:00:00:00:48", Mark: c.mark}}}
		if err := s.Add(); err != nil {
			t.Fatal(err)
		}
		if got := marks(host, c.to); got != c.want {
			t.Errorf("mark %#x at %s, called at %s: the socket has %#x, want %#x", c.mark, c.veth, c.to, got, c.want)
		}
	}
}

// marker starts a server in a namespace. The function that it returns connects to the server, and returns the mark of
// the accepted socket.
func marker(t *testing.T, n *nl.NS) func(from *nl.NS, to string) int {
	t.Helper()
	const port = "8080"
	var l net.Listener
	if err := n.Do(func() (err error) { l, err = net.Listen("tcp", ":"+port); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return func(from *nl.NS, to string) (mark int) {
		t.Helper()
		if err := from.Do(func() error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(to, port), time.Minute)
			if err != nil {
				return err
			}
			return c.Close()
		}); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if e := raw.Control(func(fd uintptr) {
			mark, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK)
		}); e != nil || err != nil {
			t.Fatal(e, err)
		}
		return mark
	}
}
