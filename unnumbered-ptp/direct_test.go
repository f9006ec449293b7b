// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// tracked is how many connections a namespace tracks.
func tracked(t *testing.T, n *nl.NS) string {
	t.Helper()
	count, err := n.Sysctl("net/netfilter/nf_conntrack_count")
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// hooked lists the tables of netfilter in a namespace, nftables' and iptables'. Where
// there is none nothing asks for a hook, and the tracker neither.
func hooked(t *testing.T, n *nl.NS) []string {
	t.Helper()
	tables, err := n.Tables()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Do(func() error {
		for _, file := range []string{"ip_tables_names", "ip6_tables_names", "arp_tables_names"} {
			names, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			tables = append(tables, strings.Fields(string(names))...)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return tables
}

// TestDirect: a pod's traffic to the VPC, and the VPC's to it, on whatever port, is
// tracked nowhere and meets no netfilter in the pod; what a pod says to services is
// tracked on the node alone. A pod that masquerades shows that this test can tell.
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
	if n := tracked(t, s.node); n != "0" {
		t.Errorf("the node tracks %s direct connections", n)
	}
	for range 3 {
		if _, err := call(p.NS, "tcp4", "172.20.0.10:80"); err != nil {
			t.Error(err)
		}
	}
	if n := tracked(t, s.node); n != "3" {
		t.Errorf("the node tracks %s connections to services, want 3", n)
	}
	if n, tables := tracked(t, p.NS), hooked(t, p.NS); n != "0" || len(tables) != 0 {
		t.Errorf("the pod tracks %s connections, and netfilter has %v", n, tables)
	}
	if n, tables := tracked(t, sibling.NS), hooked(t, sibling.NS); n == "0" || len(tables) == 0 {
		t.Errorf("a pod that masquerades tracks %s connections, and netfilter has %v", n, tables)
	}
}
