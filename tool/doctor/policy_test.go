// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// TestPolicyEngines checks that doctor finds each policy engine once, by the objects that the engine leaves on a node.
// doctor must name the pools that the engine does not restrict.
func TestPolicyEngines(t *testing.T) {
	nltest.Need(t, "root", "nftables")
	chain := func(family, table, name string) func(*nl.NS) error {
		c := nl.Chain{Name: name, Type: "filter", Hook: "forward"}
		return nl.Table{Family: family, Name: table, Chains: []nl.Chain{c}}.Add
	}
	pin := func(name string) func(*nl.NS) error {
		return func(*nl.NS) error {
			name := filepath.Join(bpfFS, name)
			return errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, nil, 0o600))
		}
	}
	const paths, veth = `"pools": {"policed": {"dataPath": "veth", "namespaces": ["payments"]}}`, `"dataPath": "veth"`
	type traces = []func(*nl.NS) error
	for _, tt := range []struct {
		name, keys string
		leaves     traces
		want       string
	}{
		{"none", paths, traces{chain("ip", "filter", "FORWARD"), chain("ip", "nat", "KUBE-SERVICES")}, ""},
		{"kube-network-policies", paths, traces{chain("inet", "kube-network-policies", "postrouting")},
			"kube-network-policies: default"},
		{"kube-router", paths, traces{chain("ip6", "filter", "KUBE-ROUTER-FORWARD")},
			"kube-router: default"},
		{"Calico by both", paths, traces{chain("ip", "filter", "cali-FORWARD"),
			chain("ip", "calico", "filter-FORWARD")}, "Calico: default"},
		{"agent", paths, traces{pin("globals/aws/programs/web-default_handle_ingress")},
			"aws-network-policy-agent: default"},
		{"Cilium", paths, traces{pin("tc/globals/cilium_policy_00042")}, "Cilium: default"},
		{"all pods routed", veth, traces{chain("inet", "kube-network-policies", "postrouting")}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			was := bpfFS
			bpfFS = t.TempDir()
			t.Cleanup(func() { bpfFS = was })
			host, _ := nltest.NS(t, "node")
			for _, leave := range tt.leaves {
				want(t, leave(host))
			}
			file := filepath.Join(t.TempDir(), "10.conflist")
			want(t, os.WriteFile(file, fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
				{"type": "cni-ipvlan-vpc-k8s", "secGroupIds": [], "hostInterface": "eth0",
				"containerInterface": "eth1", %s}]}`, tt.keys), 0o600))
			n := &Node{pool: &ipam.Pool{}, conflists: conf.Load(file)}
			n.pool.Host = host
			var err error
			n.ours, err = n.conflists.All()
			want(t, err)
			found, err := n.checkPolicy(t.Context())
			want(t, err)
			var got []string
			for _, f := range found {
				got = append(got, f.About+": "+f.Means[strings.LastIndex(f.Means, ": ")+2:])
			}
			if got := strings.Join(got, "\n"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
