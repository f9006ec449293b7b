// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const redirect = "redirect" // the default

// loops are the ways of a pod's packet to a Service, each in a scene of its own, and those in which pods see who calls them.
var loops = []mode{
	{redirect, withServices, dual},
	{"redirect, keepCaller", keepCaller(withServices), paths.Options{Families: dual.Families, Kept: true}},
	{"masquerade, keepCaller", keepCaller(loopBy("masquerade")), paths.Options{Families: dual.Families, Kept: true, Tracking: true}},
	{"none", loopBy("none"), paths.Options{Families: dual.Families, Loopless: true}},
}

// withServices says where Services are: by IPv6 the default route is by the ENI.
func withServices(_, ptp map[string]any) { ptp["hostCidrs"] = kubeproxy.ServiceCIDRs() }

func loopBy(way string) func(ipam, ptp map[string]any) {
	return func(ipam, ptp map[string]any) {
		withServices(ipam, ptp)
		ptp["serviceLoop"] = way
	}
}

func keepCaller(change func(ipam, ptp map[string]any)) func(ipam, ptp map[string]any) {
	return func(ipam, ptp map[string]any) {
		change(ipam, ptp)
		ptp["keepCaller"] = true
	}
}

// TestServices goes every way to Services, by either service loop, with the rules of kube-proxy in either of its modes;
// and all other ways, which are still there.
func TestServices(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	m := &matrix{counts: map[cell]string{}}
	for _, loop := range loops {
		t.Run(loop.name, func(t *testing.T) {
			s := loop.serviceScene(t)
			for _, proxy := range kubeproxy.Modes {
				t.Run(string(proxy), func(t *testing.T) {
					column := string(proxy) + ", " + loop.name
					m.columns = append(m.columns, column)
					serve(t, s, proxy)
					m.tryAll(t, s, dual, column)
					direct{s}.untouched(t, !loop.Tracking)
					if loop.name == redirect {
						manyConnections(t, s)
					}
				})
			}
			dropless(t, s)
		})
	}
	rows := slices.Concat(paths.Daily, paths.Further)
	for _, svc := range paths.Services {
		rows = append(rows, svc.Path)
	}
	t.Logf("probes that were right, by path, family and mode:\n%s", m.table(rows))
}

// tryAll tries all there is of some families in a column.
func (m *matrix) tryAll(t *testing.T, s *paths.Scene, o paths.Options, column string) {
	t.Helper()
	for _, f := range o.Families {
		for _, p := range slices.Concat(paths.Daily, paths.Further) {
			if p.In(f) {
				m.note(t, cell{p.Name, f, column}, p.Try(s, f, paths.Quick))
			}
		}
		for _, svc := range paths.Services {
			if svc.In(f) {
				m.note(t, cell{svc.Name, f, column}, svc.Try(s, f, svc.Probes))
			}
		}
	}
}

// serviceScene has three pods on either node, each of which answers as a DNS server, too.
func (m mode) serviceScene(t *testing.T) *paths.Scene {
	t.Helper()
	s := m.scene(t)
	addPod(t, s.Nodes[1], "default", "remotesibling")
	addPod(t, s.Nodes[1], "cousins", "remotecousin")
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			if err := p.Answer(paths.DNS); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// serve has kube-proxy's rules on the nodes until the end of the test.
func serve(t *testing.T, s *paths.Scene, m kubeproxy.Mode) {
	t.Helper()
	stop, err := s.Serve(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
