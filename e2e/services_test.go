// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

const redirect = "redirect" // the default

// loops are the modes of the service loop, each with its own scene, and the modes in which pods see their callers.
var loops = []mode{
	{redirect, withServices, dual},
	{"redirect, keepCaller", keepCaller(withServices), paths.Options{Families: dual.Families, Kept: true}},
	{"masquerade, keepCaller", keepCaller(loopBy("masquerade")), paths.Options{Families: dual.Families, Kept: true,
		Tracking: true}},
	{"none", loopBy("none"), paths.Options{Families: dual.Families, Loopless: true}},
	{"redirect, whole ENI", wholeENI, paths.Options{Families: dual.Families,
		Annotations: map[string]map[string]string{"cousins": {nic.Annotation: `[{"exclusive": true}]`}}}},
	{byPair, routedServices, paths.Options{Families: dual.Families, Kept: true, Tracking: true}},
}

// byPair is the data path without slaves. Pods see their callers, because the node translates only as kube-proxy does.
const byPair = "veth"

func routedServices(ipam, ptp map[string]any) {
	withServices(ipam, ptp)
	routed(ipam, nil)
}

// wholeENI gives a whole ENI to the pods that are alone on their ENI. They call Services, and are backends of some.
func wholeENI(ipam, ptp map[string]any) {
	withServices(ipam, ptp)
	ipam["requests"] = []map[string]any{{"namespaces": []string{"cousins"}, "exclusive": true}}
	ipam["capabilities"] = map[string]bool{"io.kubernetes.cri.pod-annotations": true}
}

// withServices leads packets for Services to the node, because the IPv6 default route uses the ENI.
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

// TestServices tries every path to Services with each service loop and each mode of kube-proxy. All other paths must
// still work.
func TestServices(t *testing.T) {
	nltest.Need(t, "root", "nftables")
	m := &matrix{counts: map[cell]string{}}
	for i, loop := range loops {
		t.Run(loop.name, func(t *testing.T) {
			loop.need(t)
			s := loop.serviceScene(t)
			for _, proxy := range proxiesOf(i) {
				t.Run(string(proxy), func(t *testing.T) {
					column := string(proxy) + ", " + loop.name
					m.columns = append(m.columns, column)
					serve(t, s, proxy)
					m.tryAll(t, s, dual, column)
					cousinsApart(t, s, loop.Annotations != nil)
					if loop.name != byPair { // of which the node tracks all, and the pod nothing
						direct{s}.untouched(t, !loop.Tracking)
					}
					if loop.name == redirect && proxy == proxiesOf(i)[0] {
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

// cousinsApart checks whether the pods that are alone on their ENI have its link.
func cousinsApart(t *testing.T, s *paths.Scene, want bool) {
	t.Helper()
	for _, n := range s.Nodes {
		for _, e := range n.ENIs() {
			if on := n.On(e.Index); e.Index == 2 && len(on) == 1 {
				if _, err := n.FindMAC(e.MAC); (err != nil) != want {
					t.Errorf("%s: the node has the link of the ENI of %s: %v; want %v", n.Name, on[0].Name,
						err == nil, !want)
				}
			}
		}
	}
}

// proxiesOf returns kube-proxy's modes for the nth service loop: both for the default, then one in turn, or every mode.
func proxiesOf(nth int) []kubeproxy.Mode {
	if *every || nth == 0 {
		return kubeproxy.Modes
	}
	return kubeproxy.Modes[nth%len(kubeproxy.Modes):][:1]
}

// tryAll tries all paths of these families, and fills a column.
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

// serviceScene has three pods on each node, which also answer as DNS servers.
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

// serve loads kube-proxy's rules on the nodes until the end of the test.
func serve(t *testing.T, s *paths.Scene, m kubeproxy.Mode) {
	t.Helper()
	if m == kubeproxy.IPTables {
		nltest.Need(t, "iptables")
	}
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
