// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A mode is the shipped conflist with some keys changed, and the options of the scene in which it is tested.
type mode struct {
	name   string
	change func(ipam, ptp map[string]any)
	paths.Options
}

var (
	v4   = paths.Options{Families: []paths.Family{paths.IPv4}}
	v6   = paths.Options{Families: []paths.Family{paths.IPv6}}
	dual = paths.Options{Families: []paths.Family{paths.IPv4, paths.IPv6}}
	nat  = paths.Options{Families: []paths.Family{paths.IPv4}, NAT: true}
)

var modes = []mode{
	{"IPv4", asShipped, v4},
	{"prefixes", prefixes, v4},
	{"by the ENI", byENI, nat},
	{"IPv6", onlyIPv6, v6},
	{"dual stack", asShipped, dual},
	{byPair, routedNamed, dual},
	{"veth beside ipvlan", routedCousins, dual},
}

func asShipped(_, _ map[string]any) {}
func routed(ipam, _ map[string]any) { ipam["dataPath"] = "veth" }

// routedNamed gives the pairs of routed pods the names that engines of NetworkPolicy expect.
func routedNamed(ipam, ptp map[string]any) {
	routed(ipam, nil)
	ptp["vethPrefix"] = "eni"
}

// routedCousins makes the pods of the second pool routed pods.
func routedCousins(ipam, _ map[string]any) {
	ipam["pools"].(map[string]any)["cousins"].(map[string]any)["dataPath"] = "veth"
}

func prefixes(ipam, _ map[string]any) { ipam["prefixDelegation"] = true }

// byENI sends packets to the internet through the ENI, like packets to the VPC.
func byENI(ipam, _ map[string]any) { ipam["routeToCidrs"] = []string{"0.0.0.0/0"} }

// onlyIPv6 uses prefixes of a subnet that has only IPv6.
func onlyIPv6(ipam, _ map[string]any) {
	prefixes(ipam, nil)
	ipam["subnetTags"] = map[string]string{"family": "IPv6"}
}

// TestPaths tries every path in every mode, and prints how many probes succeeded.
func TestPaths(t *testing.T) {
	nltest.Need(t, "root", "nftables")
	all := slices.Concat(paths.Daily, paths.Further)
	m := matrix{counts: map[cell]string{}}
	for _, mode := range modes {
		m.columns = append(m.columns, mode.name)
		t.Run(mode.name, func(t *testing.T) {
			mode.need(t)
			s := mode.scene(t)
			for _, p := range all {
				for _, f := range mode.Families {
					if p.In(f) {
						m.note(t, cell{p.Name, f, mode.name}, p.Try(s, f, paths.Probes))
					}
				}
			}
			dropless(t, s)
		})
	}
	t.Logf("probes that were right, by path, family and mode:\n%s", m.table(all))
}

// need skips the test if this kernel cannot run the mode.
func (m mode) need(t *testing.T) {
	t.Helper()
	if m.name != byPair {
		nltest.Need(t, "ipvlan")
	}
}

func dropless(t *testing.T, s *paths.Scene) {
	t.Helper()
	drops, err := s.Drops()
	if err := errors.Join(err, s.Err()); err != nil || drops != (vpcsim.Drops{}) {
		t.Errorf("the fabric has dropped: %v; %v", drops, err)
	}
}

// scene creates the pods at the ends of the paths. The first node has two pods on one ENI, and a pod on an ENI of
// another pool. The second node has one pod.
func (m mode) scene(t *testing.T) *paths.Scene {
	t.Helper()
	conflist, err := m.conflist()
	if err != nil {
		t.Fatal(err)
	}
	s := m.open(t, conflist)
	addPod(t, s.Nodes[0], "default", "pod1")
	addPod(t, s.Nodes[0], "default", "sibling")
	addPod(t, s.Nodes[0], "cousins", "cousin")
	addPod(t, s.Nodes[1], "default", "remote")
	return s
}

// open makes two nodes with this conflist. They have no pods yet.
func (m mode) open(t *testing.T, conflist []byte) *paths.Scene {
	t.Helper()
	m.Bin, m.Conflist, m.Further = programs(t), conflist, true
	s, err := paths.New(m.Options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func addPod(t *testing.T, n *paths.Node, kubernetes, name string) {
	t.Helper()
	p, err := n.Add(t.Context(), kubernetes, name)
	if err != nil {
		t.Fatal(err)
	}
	n.Pods = append(n.Pods, p)
}

// conflist returns the shipped conflist with the keys that the mode and the paths need.
func (m mode) conflist() ([]byte, error) {
	b, err := os.ReadFile("conflist-examples/10-cni-ipvlan-vpc-k8s.conflist")
	if err != nil {
		return nil, err
	}
	var list struct {
		CNIVersion  string           `json:"cniVersion"`
		CNIVersions []string         `json:"cniVersions"`
		Name        string           `json:"name"`
		Plugins     []map[string]any `json:"plugins"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, err
	}
	ipam, ptp := list.Plugins[0], list.Plugins[len(list.Plugins)-1]
	var families []string
	for _, f := range m.Families {
		families = append(families, f.String())
	}
	ipam["ipFamilies"], ipam["routeToCidrs"] = families, paths.OfficeCIDRs
	ipam["pools"] = map[string]any{"cousins": map[string]any{"namespaces": []string{"cousins"}}}
	m.change(ipam, ptp)
	return json.Marshal(list)
}

// A matrix has the outcomes of all paths in all modes.
type matrix struct {
	columns []string // the names of the modes
	counts  map[cell]string
}

type cell struct {
	path   string
	family paths.Family
	mode   string
}

// note records the result of a path, and fails the test unless all probes succeeded.
func (m matrix) note(t *testing.T, c cell, r paths.Result) {
	t.Helper()
	m.counts[c] = fmt.Sprintf("%d/%d", len(r.Passed), r.Of)
	if r.Err != nil {
		t.Errorf("%s, %s: %v", c.path, c.family, r.Err)
	}
}

// table returns a line for each path and family, and a column for each mode.
func (m matrix) table(all []paths.Path) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(append([]string{"path", "family"}, m.columns...), "\t"))
	for _, p := range all {
		for _, f := range []paths.Family{paths.IPv4, paths.IPv6} {
			if !p.In(f) {
				continue
			}
			line := []string{p.Name, f.String()}
			for _, mode := range m.columns {
				count, ok := m.counts[cell{p.Name, f, mode}]
				if !ok {
					count = "-"
				}
				line = append(line, count)
			}
			fmt.Fprintln(w, strings.Join(line, "\t"))
		}
	}
	w.Flush()
	return b.String()
}
