// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

// loops6 has the modes of the service loop in a cluster without IPv4.
var loops6 = []mode{
	{redirect, both(onlyIPv6, withServices), v6},
	{"redirect, keepCaller", both(onlyIPv6, keepCaller(withServices)),
		paths.Options{Families: v6.Families, Kept: true}},
	{"masquerade", both(onlyIPv6, loopBy("masquerade")), paths.Options{Families: v6.Families, Tracking: true}},
}

func both(first, second func(ipam, ptp map[string]any)) func(ipam, ptp map[string]any) {
	return func(ipam, ptp map[string]any) {
		first(ipam, ptp)
		second(ipam, ptp)
	}
}

// TestServicesIPv6 is [TestServices] in a cluster without IPv4.
func TestServicesIPv6(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	m := &matrix{counts: map[cell]string{}}
	for i, loop := range loops6 {
		t.Run(loop.name, func(t *testing.T) {
			s := loop.serviceScene(t)
			// TestServices tries the default mode with all modes of kube-proxy. Here this mode has the same rules, so
			// one mode of kube-proxy is enough.
			for _, proxy := range proxiesOf(i + 1) {
				t.Run(string(proxy), func(t *testing.T) {
					column := string(proxy) + ", " + loop.name
					m.columns = append(m.columns, column)
					serve(t, s, proxy)
					m.tryAll(t, s, loop.Options, column)
				})
			}
			dropless(t, s)
			uninvolved(t, s, loop.Tracking)
		})
	}
	rows := slices.Concat(paths.Daily, paths.Further)
	for _, svc := range paths.Services {
		rows = append(rows, svc.Path)
	}
	rows = slices.DeleteFunc(rows, func(p paths.Path) bool { return !p.In(paths.IPv6) })
	for i := range rows {
		rows[i].Only = paths.IPv6
	}
	t.Logf("probes that were right, by path, family and mode:\n%s", m.table(rows))
}

// uninvolved checks that the first pod has no netfilter tables, except if the pod masquerades. It also checks that the
// nodes have sent no ICMP redirects.
func uninvolved(t *testing.T, s *paths.Scene, tracking bool) {
	t.Helper()
	if hooks := nltest.Hooked(t, s.Nodes[0].Pods[0].NS); len(hooks) > 0 != tracking {
		t.Errorf("the pod has netfilter tables %v", hooks)
	}
	for _, n := range s.Nodes {
		if count := counter(t, n.NS, "Icmp6OutRedirects"); count > 0 {
			t.Errorf("%s has sent %d redirects", n.Name, count)
		}
	}
}
