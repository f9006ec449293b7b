// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// loopsOfAll has the service loops that tests give to all pods of a scene.
var loopsOfAll = []string{"redirect", "masquerade", "none"}

// TestPathMTU sends large packets to a host behind a link with a smaller MTU. The router's ICMP errors must reach the
// connection, even if it is a connection to a Service.
func TestPathMTU(t *testing.T) {
	for _, loop := range loopsOfAll {
		s := newScene(t, [2]string{loop, loop})
		s.add(s.router, nl.Up{Dev: "eni2", MTU: 1500})
		for _, to := range []string{"172.20.0.16:80", otherAddr + ":8081"} {
			for _, network := range []string{"tcp4", "tcp6"} {
				const size = 300_000
				if got, err := send(s.pods[0].NS, network, dialled(network, to), size); err != nil || got != "300000" {
					t.Errorf("%s, %s (%s): arrived %q of %d; %v", loop, to, network, got, size, err)
				}
			}
		}
	}
}

// TestPathMTUOfDatagrams sends fragments that are too large for the router's next link. With IPv6, the router's error
// quotes a fragment. The error must reach the sending socket, even in a call to a Service.
func TestPathMTUOfDatagrams(t *testing.T) {
	for _, loop := range loopsOfAll {
		s := newScene(t, [2]string{loop, loop})
		s.add(s.router, nl.Up{Dev: "eni2", MTU: 1500})
		s.add(s.other, nl.Up{Dev: "eth0", MTU: 1500}) // so that the host's answers arrive
		for _, to := range []string{"172.20.0.10:80", otherAddr + ":8080"} {
			for _, network := range []string{"udp4", "udp6"} {
				if err := s.pods[0].NS.Do(func() error {
					return repeat(network, dialled(network, to), 20000)
				}); err != nil {
					t.Errorf("%s, %s (%s): %v", loop, to, network, err)
				}
			}
		}
	}
}

// repeat sends datagrams of this size through one socket until an answer arrives.
func repeat(network, to string, bytes int) error {
	c, err := net.Dial(network, to)
	if err != nil {
		return err
	}
	defer c.Close()
	for range 20 {
		c.SetDeadline(time.Now().Add(500 * time.Millisecond))
		c.Write(make([]byte, bytes))
		if _, err = c.Read(make([]byte, 1<<16)); err == nil {
			return nil
		}
	}
	return err
}

// TestSmallENI: connections work if the pod's link to the VPC has a smaller MTU than its veth.
func TestSmallENI(t *testing.T) {
	f := newFabric(t)
	f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
	listen(t, f.other, ":8081", drain)
	p := f.pod("pod1", pod1Addr, dual)
	f.add(p.NS, nl.Up{Dev: "eth0", MTU: 1500})
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	if got, err := send(p.NS, "tcp4", "172.20.0.16:80", 300_000); err != nil || got != "300000" {
		t.Errorf("arrived %q; %v", got, err)
	}
}

// TestENIBecomesSmall: the MTU of the ENI becomes smaller after the ADD. The routes of the service loop keep the old
// MTU, so large packets to Services are lost. Restore corrects the MTU of these routes.
func TestENIBecomesSmall(t *testing.T) {
	nltest.Need(t, "ipvlan")
	f := newFabric(t)
	f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
	listen(t, f.other, ":8081", drain)
	p := f.pod("pod1", pod1Addr, dual)
	must(t, f.ADD(p))
	f.add(f.node, nl.Up{Dev: "eth1", MTU: 1500})
	f.add(p.NS, nl.MTU6{Dev: "eth0"})
	must(t, f.CHECK(p))
	l := f.missing(p)
	if w, err := f.restore(l); err != nil || len(w) == 0 || !l.Serious() {
		t.Fatalf("Restore puts back %v; %v", w, err)
	}
	if again := f.missing(p); !again.None() {
		t.Errorf("after Restore, the pod misses %v", again.Node)
	}
	must(t, f.CHECK(p))
	if got, err := send(p.NS, "tcp4", "172.20.0.16:80", 300_000); err != nil || got != "300000" {
		t.Errorf("arrived %q; %v", got, err)
	}
}

// TestFragments sends datagrams that are larger than the MTU.
func TestFragments(t *testing.T) {
	for _, loop := range loopsOfAll {
		s := newScene(t, [2]string{loop, loop})
		service := s.pods[0].asCaller()
		for _, c := range []struct{ to, seen string }{
			{otherAddr + ":8080", pod1Addr}, {pod2Addr + ":8080", pod1Addr}, {pod2Addr + ":50000", pod1Addr},
			{pod3Addr + ":50000", pod1Addr},
			{"172.20.0.10:80", service}, {"172.20.0.11:80", service}, {"172.20.0.14:80", service},
			{"172.20.0.15:80", service},
		} {
			for _, network := range []string{"udp4", "udp6"} {
				seen, err := send(s.pods[0].NS, network, dialled(network, c.to), 20000)
				if want := seenAs(network, c.seen); err != nil || seen != want {
					t.Errorf("%s, %s (%s): seen as %q, want %q; %v", loop, c.to, network, seen, want, err)
				}
			}
		}
	}
}
