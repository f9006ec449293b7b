// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestDirect sends traffic between a pod and the VPC, in both directions and on any port. Neither the node nor the pod
// tracks it, and the pod has no netfilter hooks. Only the node tracks traffic to Services. The scene also has a pod
// that masquerades: its traffic proves that the test can fail.
func TestDirect(t *testing.T) {
	s := newScene(t, [2]string{"redirect", "masquerade"})
	p, sibling := s.pods[0], s.pods[1]
	for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
		for _, c := range []struct {
			from *nl.NS
			to   string
		}{
			{p.NS, otherAddr + ":8080"}, {s.other, pod1Addr + ":8080"}, {s.other, pod1Addr + ":50000"},
			{p.NS, pod2Addr + ":8080"}, {sibling.NS, pod1Addr + ":50000"}, {p.NS, pod3Addr + ":50000"},
		} {
			if _, err := call(c.from, network, dialled(network, c.to)); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := send(s.other, "udp4", pod1Addr+":50000", 20000); err != nil {
		t.Errorf("in fragments: %v", err)
	}
	if n := nltest.Tracked(t, s.node); n != 0 {
		t.Errorf("the node tracks %d direct connections", n)
	}
	for range 3 {
		if _, err := call(p.NS, "tcp4", "172.20.0.10:80"); err != nil {
			t.Error(err)
		}
	}
	if n := nltest.Tracked(t, s.node); n != 3 {
		t.Errorf("the node tracks %d connections to services, want 3", n)
	}
	if n, tables := nltest.Tracked(t, p.NS), nltest.Hooked(t, p.NS); n != 0 || len(tables) != 0 {
		t.Errorf("the pod tracks %d connections, and netfilter has %v", n, tables)
	}
	if rules, err := p.Rules(); err != nil || len(rules) != 5 {
		t.Errorf("the pod has the rules %v, want the kernel's, three and two, which it does not ask one by one: %v",
			rules, err)
	}
	if n, tables := nltest.Tracked(t, sibling.NS), nltest.Hooked(t, sibling.NS); n == 0 || len(tables) == 0 {
		t.Errorf("a pod that masquerades tracks %d connections, and netfilter has %v", n, tables)
	}
}
