// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// TestFamilies: ADD refuses a pod with a family that the node does not have, and changes nothing. It accepts a pod with
// only one of the node's families.
func TestFamilies(t *testing.T) {
	only6 := func(r *types100.Result) { dual(r); r.IPs, r.Routes = r.IPs[1:], r.Routes[1:] }
	none := func(*types100.Result) {}
	const (
		without6 = "-6 addr del fd00:0:9::10/64 dev eth0"
		without4 = "addr del 10.0.9.10/24 dev eth0"
		disabled = "disabled"
	)
	for _, c := range []struct {
		node   string
		pod    func(*types100.Result)
		lacks  string // the family that the error names
		advice string
	}{
		{without6, none, "", ""},
		{without6, dual, "hostInterface: eth0 has no IPv6 address, and the pod has fd00:0:1::50",
			"leave IPv6 out of ipFamilies"},
		{without6, only6, "hostInterface: eth0 has no IPv6 address, and the pod has fd00:0:1::50", "disable_ipv6 to 0"},
		{disabled, none, "", ""},
		{disabled, dual, "hostInterface: eth0 has no IPv6 address, and the pod has fd00:0:1::50", "disable_ipv6 to 0"},
		{without4, none, "hostInterface: eth0 has no IPv4 address, and the pod has 10.0.1.50",
			"leave IPv4 out of ipFamilies"},
		{without4, only6, "", ""},
		{without4, dual, "hostInterface: eth0 has no IPv4 address, and the pod has 10.0.1.50",
			"leave IPv4 out of ipFamilies"},
	} {
		f := newFabric(t)
		if c.node == disabled {
			for _, which := range []string{"all", "default"} {
				f.add(f.node, nl.Sysctl{Key: "net/ipv6/conf/" + which + "/disable_ipv6", Value: "1"})
			}
		} else {
			iproute(t, f.node, c.node)
		}
		p := f.pod("pod1", pod1Addr, c.pod)
		before := nltest.Dump(t, f.node, p.NS)
		err := f.ADD(p)
		if c.lacks == "" {
			must(t, err)
			must(t, f.CHECK(p))
			must(t, f.DEL(p))
			continue
		}
		if e, ok := err.(*plugin.Error); !ok || e.Error() != c.lacks || e.Code != plugin.CodeTryAgain ||
			!strings.Contains(e.Hint, c.advice) {
			t.Errorf("%s: got %v", c.node, err)
		}
		same(t, c.node, before, nltest.Dump(t, f.node, p.NS))
		must(t, f.DEL(p))
	}
}

// TestDisabledByDefault: IPv6 is enabled on hostInterface, but disabled by default on new links. ADD enables it on the
// links of pods with IPv6.
func TestDisabledByDefault(t *testing.T) {
	f := newFabric(t)
	f.add(f.node, nl.Sysctl{Key: "net/ipv6/conf/default/disable_ipv6", Value: "1"})
	p, q := f.pod("pod1", pod1Addr, dual), f.pod("pod2", pod2Addr)
	serve(t, p.NS, ":8080")
	for _, p := range []*pod{p, q} {
		must(t, f.ADD(p))
		must(t, f.CHECK(p))
	}
	if seen, err := call(f.node, "tcp6", dialled("tcp6", pod1Addr+":8080")); err != nil ||
		seen != seenAs("tcp6", nodeAddr) {
		t.Errorf("seen as %q; %v", seen, err)
	}
	if v, err := f.node.Sysctl("net/ipv6/conf/" + q.result.Interfaces[1].Name + "/disable_ipv6"); v != "1" ||
		err != nil {
		t.Errorf("the link of a pod without IPv6 has disable_ipv6=%s, %v", v, err)
	}
}
