// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// TestAddressFlaps removes an address of the node, and adds it again. Together with the address, the kernel removes the
// address's routes, and removes the address as the source of IPv6 routes. Repair and GC must restore both. Services
// answer even before that.
func TestAddressFlaps(t *testing.T) {
	for _, loop := range loopsOfAll {
		t.Run(loop, func(t *testing.T) {
			s := newScene(t, [2]string{loop, loop})
			p := s.pods[0]
			for name, repair := range map[string]func() error{
				"Repair": func() error { _, err := ptp.Repair(s.node, "net", p.request.Config); return err },
				"GC": func() error {
					return s.GC(p, p.request.Attachment, s.pods[1].request.Attachment, s.pods[2].request.Attachment)
				},
			} {
				before := nltest.Dump(t, s.node, p.NS)
				iproute(t, s.node, again[1:])
				if s.CHECK(p) == nil {
					t.Error("CHECK is content, and so this test cannot tell")
				}
				s.serves(t, p)
				must(t, repair())
				same(t, name, before, nltest.Dump(t, s.node, p.NS))
				must(t, s.CHECK(p))
				s.serves(t, p)
			}
		})
	}
}

// serves checks that a Service answers a pod in both families.
func (s *scene) serves(t *testing.T, p *pod) {
	t.Helper()
	for _, network := range []string{"tcp4", "tcp6"} {
		seen, err := call(p.NS, network, dialled(network, "172.20.0.10:80"))
		if want := seenAs(network, p.asCaller()); err != nil || seen != want {
			t.Errorf("%s: the service sees %q, want %q; %v", network, seen, want, err)
		}
	}
}

// TestAddressFlapsOfHeirs removes and adds an address of the node. Several pods have got the same address one after
// another, and no DEL has deleted the earlier pods. Repair must make the restored route lead to the last pod.
func TestAddressFlapsOfHeirs(t *testing.T) {
	f := newFabric(t)
	var heir *pod
	for i := range 4 {
		heir = f.unconnected(fmt.Sprint("pod", i), pod1Addr)
		f.add(f.router, nl.Veth{Name: heir.Name, Peer: "eth0", PeerNS: heir.NS})
		heir.request.Prev = heir.ipam
		must(t, f.ADD(heir))
	}
	before := nltest.Dump(t, f.node)
	iproute(t, f.node, again[1:])
	_, err := ptp.Repair(f.node, "net", heir.request.Config)
	must(t, err)
	same(t, "Repair", before, nltest.Dump(t, f.node))
}
