// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestNested runs a container in a pod (Docker in Docker). The pod translates the container's address to its own. The
// container connects to the VPC and to Services from any port, and does not disturb the pod's own connections. With
// keepCaller, the container also gets answers that arrive at the pod's pair.
func TestNested(t *testing.T) {
	nltest.Need(t, "iptables")
	t.Run("redirect", func(t *testing.T) { nested(t, newScene(t, redirects), 0) })
	for i, loop := range []string{"redirect", "masquerade"} {
		t.Run(loop+", keepCaller", func(t *testing.T) {
			nested(t, newSceneKeeping(t, true, [2]string{loop, loop}), i+1)
		})
	}
}

// nested makes all calls of TestNested. The maps of the loop redirect still have entries of an earlier scene, and pods
// of all scenes have the same numbers. So each scene adds another shift to its ports.
func nested(t *testing.T, s scene, shift int) {
	p := s.pods[0]
	inner, _ := nltest.NS(t, "inner")
	bridge := netip.MustParsePrefix("172.17.0.1/16")
	s.add(p.NS, nl.Veth{Name: "docker0", Peer: "eth0", PeerNS: inner, MTU: 1500},
		nl.Addr{Prefix: bridge, Dev: "docker0"},
		nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"})
	// MASQUERADE keeps the ports of the container.
	(&fabric{t: t, node: p.NS}).iptables("-A", "POSTROUTING", "-s", bridge.Masked().String(), "!", "-o", "docker0",
		"-j", "MASQUERADE")
	s.add(inner, nl.Addr{Prefix: netip.MustParsePrefix("172.17.0.2/16"), Dev: "eth0"},
		nl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: bridge.Addr(), Dev: "eth0"})
	for _, c := range []struct {
		from     *nl.NS
		port     int
		to, seen string
	}{
		{inner, 40000, otherAddr + ":8080", pod1Addr},
		{inner, 55000, otherAddr + ":8080", pod1Addr},
		{p.NS, 55000 - 16384, "172.20.0.10:80", pod1Addr}, // the loop translates this port to the port above
		{inner, 56000, otherAddr + ":8080", pod1Addr},
		{inner, 56000, "172.20.0.10:80", pod1Addr},
		{inner, 57000, pod2Addr + ":8080", pod1Addr},
		{inner, 58000, internet + ":443", nodeAddr},
		{p.NS, 58000 - 16384, "172.20.0.11:80", pod1Addr},
	} {
		var seen string
		port := c.port + shift
		if err := c.from.Do(func() (err error) { seen, err = callFrom(port, c.to); return err }); err != nil ||
			seen != c.seen {
			t.Errorf("from port %d of %s to %s: seen as %q, want %q; %v", port, c.from.Name, c.to, seen, c.seen, err)
		}
	}
}

// callFrom connects from a port, and returns the server's answer. It retries while an earlier connection from this port
// still ends.
func callFrom(port int, to string) (string, error) {
	d := net.Dialer{Timeout: time.Minute, LocalAddr: &net.TCPAddr{Port: port}}
	c, err := d.Dial("tcp4", to)
	for deadline := time.Now().Add(time.Minute); errors.Is(err, syscall.EADDRINUSE) &&
		time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		c, err = d.Dial("tcp4", to)
	}
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	seen, err := io.ReadAll(c)
	return string(seen), err
}
