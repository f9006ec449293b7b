// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
)

// asking returns a configuration by which a pod asks for interfaces.
func asking(t *testing.T, keys, interfaces string) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{nic.Annotation: interfaces})
	if err != nil {
		t.Fatal(err)
	}
	return `{` + keys + `"runtimeConfig": {"io.kubernetes.cri.pod-annotations": ` + string(b) + `}}`
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		what, keys, asked string
		n                 int
		links             string // the pod's links; a + marks those of this attachment
		want              string // or the error
	}{
		{"one", "", `[{}]`, 1, "lo eth1", "eth0"},
		{"nothing is asked", "", ``, 3, "lo", "eth0 eth2 eth3"},
		{"no names", "", `[{}, {}, {}]`, 3, "lo", "eth0 eth2 eth3"},
		{"names", "", `[{"name": "eth0"}, {"name": "net1"}, {"name": "a.b"}]`, 3, "lo", "eth0 net1 a.b"},
		{"a name that would be the next", "", `[{}, {}, {"name": "eth2"}]`, 3, "lo", "eth0 eth3 eth2"},
		{"another pair", `"containerInterface": "veth0", `, `[{}, {}, {}]`, 3, "lo", "eth0 eth1 eth2"},
		{"a link of others", "", `[{}, {}, {}]`, 3, "lo eth2 eth4 tun0", "eth0 eth3 eth5"},
		{"again", "", `[{}, {}, {}]`, 3, "lo +eth0 eth1 +eth2 +eth3", "eth0 eth2 eth3"},
		{"again, with the name", "", `[{}, {"name": "net1"}, {}]`, 3, "lo +eth0 +net1 +eth2", "eth0 net1 eth2"},
		{"half of it again", "", `[{}, {}, {}]`, 3, "lo +eth0 +eth2", "eth0 eth2 eth3"},
		{"a name of others", "", `[{}, {"name": "tun0"}]`, 2, "lo tun0",
			`interface 2: name: "tun0": another link of the pod has this name`},
		{"lo", "", `[{}, {"name": "lo"}]`, 2, "lo",
			`annotation cni-ipvlan-vpc-k8s/nics: interface 2: name: "lo": the name is one that the kernel uses ` +
				`itself: want 1 to 15 bytes of printable ASCII without /, : and %`},
		{"the pair's", "", `[{}, {"name": "eth1"}]`, 2, "lo",
			`interface 2: name: "eth1": another link of the pod has this name`},
		{"more are asked than there are", "", `[{}, {}, {"name": "eth2"}]`, 2, "lo", "eth0 eth3"},
	} {
		config := `{` + strings.TrimSuffix(c.keys, ", ") + `}`
		if c.asked != "" {
			config = asking(t, c.keys, c.asked)
		}
		r := request(t, config, nil, nil)
		var links []nl.Link
		for _, name := range strings.Fields(c.links) {
			own := strings.HasPrefix(name, "+")
			l := nl.Link{Name: strings.TrimPrefix(name, "+")}
			if own {
				l.Group = nl.PodGroup(r.Digest())
			}
			links = append(links, l)
		}
		asked, err := r.Config.Requests(r.IfName)
		var all []string
		if err == nil {
			all, err = linkNames(r, asked, c.n, links)
		}
		got := strings.Join(all, " ")
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
}
