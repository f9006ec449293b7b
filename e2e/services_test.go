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

// loops has the modes of the service loop, including those in which pods see the addresses of their callers. Each mode
// has its own scene.
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

// byPair is the data path of routed pods. They see the addresses of their callers, because only kube-proxy translates
// addresses on the node.
const byPair = "veth"

func routedServices(ipam, ptp map[string]any) {
	withServices(ipam, ptp)
	routed(ipam, nil)
}

// wholeENI gives whole ENIs to the pods of the Kubernetes namespace cousins. These pods call Services, and are backends
// of some Services.
func wholeENI(ipam, ptp map[string]any) {
	withServices(ipam, ptp)
	ipam["requests"] = []map[string]any{{"namespaces": []string{"cousins"}, "exclusive": true}}
	ipam["capabilities"] = map[string]bool{"io.kubernetes.cri.pod-annotations": true}
}

// withServices makes packets for Services go to the node. Otherwise IPv6 packets would use the default route through
// the ENI.
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

// TestServices tries each path to Services with each service loop and kube-proxy mode. All other paths must still work.
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
					if loop.name != byPair { // the node tracks all packets of routed pods, and the pods track none
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

// cousinsApart checks pods that are alone on their ENI. If want is true, the link of such an ENI must be in the pod.
// Otherwise the link must be on the node.
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

// proxiesOf returns the kube-proxy modes for the nth service loop. The default loop gets all modes, and each other loop
// gets one in turn; with the flag every, each loop gets all modes.
func proxiesOf(nth int) []kubeproxy.Mode {
	if *every || nth == 0 {
		return kubeproxy.Modes
	}
	return kubeproxy.Modes[nth%len(kubeproxy.Modes):][:1]
}

// tryAll tries all paths of the families in the options, and records the results in a column of the matrix.
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

// serviceScene makes a scene with three pods on each node. Each pod also answers as a DNS server.
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
