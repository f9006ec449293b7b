// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"slices"
	"sync"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const redirect = "redirect" // the default

// loops are the ways of a pod's packet to a Service, each in a scene of its own.
var loops = []mode{
	{redirect, withServices, dual},
	{"masquerade", masqueradeLoop, dual},
}

// withServices says where Services are: by IPv6 the default route is by the ENI.
func withServices(_, ptp map[string]any) { ptp["hostCidrs"] = kubeproxy.ServiceCIDRs() }

func masqueradeLoop(ipam, ptp map[string]any) {
	withServices(ipam, ptp)
	ptp["serviceLoop"] = "masquerade"
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
					m.tryAll(t, s, column)
					direct{s}.untouched(t, loop.name == redirect)
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
	for _, g := range gaps {
		t.Logf("GAP, %v: %s: %s", g.families, g.path, g.why)
	}
}

// tryAll tries all there is in a column, and meanwhile the gaps, which take their time.
func (m *matrix) tryAll(t *testing.T, s *paths.Scene, column string) {
	t.Helper()
	var meanwhile sync.WaitGroup
	defer meanwhile.Wait()
	for _, f := range dual.Families {
		for _, svc := range paths.Services {
			if c := (cell{svc.Name, f, column}); isGap(c) {
				m.counts[c] = "GAP"
				meanwhile.Go(func() {
					if r := svc.Try(s, f, svc.Probes[:1]); r.Err == nil {
						t.Errorf("%s, %s: works, and so is no gap", c.path, c.family)
					}
				})
			}
		}
	}
	for _, f := range dual.Families {
		for _, p := range slices.Concat(paths.Daily, paths.Further) {
			if p.In(f) {
				m.note(t, cell{p.Name, f, column}, p.Try(s, f, paths.Quick))
			}
		}
		for _, svc := range paths.Services {
			if c := (cell{svc.Name, f, column}); svc.In(f) && !isGap(c) {
				m.note(t, c, svc.Try(s, f, svc.Probes))
			}
		}
	}
}

// A gap is a path that is not there, by either loop.
type gap struct {
	path     string
	families []paths.Family
	why      string
}

// gaps are known. One that is closed fails the test until it is taken out.
var gaps = []gap{
	{"host in the VPC to a NodePort, Local", dual.Families, directAnswer},
	{"pod to a NodePort of another node, Local", dual.Families, directAnswer},
	{"internet to a NodePort, Local", v6.Families, directAnswer},
}

const directAnswer = "the node keeps the caller's address, and so the pod answers him directly by its ENI, past the node that has translated"

func isGap(c cell) bool {
	return slices.ContainsFunc(gaps, func(g gap) bool { return g.path == c.path && slices.Contains(g.families, c.family) })
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
		// By IPv6 a node tells a pod of what it takes for a shorter way, which no sysctl forbids, and the kernel rations that
		// together with what it refuses.
		if err := (nl.Sysctl{Key: "net/ipv6/icmp/ratelimit", Value: "0"}).Add(n.NS); err != nil {
			t.Fatal(err)
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
