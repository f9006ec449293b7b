// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestExamples checks that the examples have no mistakes. Each example is alone in its directory, as on a node.
func TestExamples(t *testing.T) {
	examples, err := filepath.Glob("../../conflist-examples/*.conflist")
	if err != nil || len(examples) == 0 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	for _, example := range examples {
		b, err := os.ReadFile(example)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mistakesOf(t, b) {
			t.Errorf("%s: %s", example, m)
		}
	}
}

// TestAllIsThree checks that validate finds the same mistakes for the one-program plugin as for the three plugins. It
// must report each mistake once.
func TestAllIsThree(t *testing.T) {
	const list = `{"name": "a", "cniVersion": "1.0.0", "plugins": [%s]}`
	right := map[string]string{
		TypeIPAM: `"secGroupIds": []`, TypeIPVlan: `"master": ""`,
		TypePTP: `"hostInterface": "eth0", "containerInterface": "eth1"`,
	}
	for _, tt := range []struct{ plugin, mistake string }{
		{TypeIPAM, `"interfaceIndex": "1"`}, {TypeIPAM, `"maxENIs": -1`}, {TypeIPAM, `"warm": {"min": 1, "mox": 2}`},
		{TypeIPAM, `"pools": {"default": {}}`},
		{TypeIPAM, `"pools": {"a": {"selectable": ["x"]}}`}, {TypeIPAM, `"subnetTags": []`},
		{TypeIPAM, `"ipBatchSize": []`}, {TypeIPAM, `"routeToCidr": ["10.0.0.0/8"]`},
		{TypeIPVlan, `"mode": 2`}, {TypeIPVlan, `"mtu": "9"`}, {TypeIPVlan, `"mtu": 9`},
		{TypeIPVlan, `"dns": {"nameserver": []}`}, {TypeIPVlan, `"linkInContainer": true`},
		{TypePTP, `"nodePortMark": -1`}, {TypePTP, `"ipMasq": "yes"`},
		{TypePTP, `"runtimeConfig": {"bandwidth": {"ingressRate": -1}}`}, {TypePTP, `"serviceLop": ""`},
	} {
		var members []string
		keys := []string{`"type": "` + TypeAll + `"`, tt.mistake}
		for _, typ := range threePlugins {
			keys = append(keys, right[typ])
			Member := `{"type": "` + typ + `", ` + right[typ]
			if typ == tt.plugin {
				Member += ", " + tt.mistake
			}
			members = append(members, Member+"}")
		}
		want := said(mistakesOf(t, fmt.Appendf(nil, list, strings.Join(members, ", "))))
		got := said(mistakesOf(t, fmt.Appendf(nil, list, "{"+strings.Join(keys, ", ")+"}")))
		if diff := cmp.Diff(want, got); diff != "" || len(want) != 1 {
			t.Errorf("%s: -three plugins +one\n%s", tt.mistake, diff)
		}
	}
}

func said(found []Mistake) (all []string) {
	for _, m := range found {
		all = append(all, m.Text)
	}
	return all
}

// TestFindConfig checks that Load finds the configuration of ipam in the examples, whichever plugin of the chain has
// it.
func TestFindConfig(t *testing.T) {
	for _, file := range []string{"10-cni-ipvlan-vpc-k8s", "three-plugins", "original", "pools"} {
		all, err := Load("../../conflist-examples/" + file + ".conflist").All()
		if err != nil || all[0].IPAM.InterfaceIndex != 1 || len(all[0].IPAM.SecGroupIDs) != 2 {
			t.Errorf("%s: %+v, %v", file, all, err)
		}
	}
	all, err := Load("../../conflist-examples").All()
	if err != nil || !all[0].IPAM.RouteToVPCPeers || len(all[0].IPAM.Pools) > 0 {
		t.Errorf("the first of the directory: %+v, %v", all, err)
	}
}

// TestValidateAnything checks that validate finds a mistake in each text that is no valid configuration. The text of
// the mistake must contain no Go types.
func TestValidateAnything(t *testing.T) {
	for _, text := range []string{
		``, `null`, `5`, `[]`, `{}`, `{"plugins": {}}`, `{"plugins": [1, null, {"type": 2}, {}]}`,
		`{"name": 1, "cniVersion": [], "cniVersions": "1.0.0", "plugins": []}`,
		`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s-ipam", "pools": {"a": ` +
			`{"warm": []}}}]}`,
		`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s-ipam", "pools": [], "warm": ` +
			`1, "secGroupIds": {}}]}`,
		`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s-unnumbered-ptp", ` +
			`"nodePortMark": -1}]}`,
		`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s-ipvlan", "dns": ` +
			`{"nameserver": []}}]}`,
		`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s", "pools": {"a": {"warm": ` +
			`[]}}, "mtu": {}, "runtimeConfig": 1}]}`,
	} {
		found := mistakesOf(t, []byte(text))
		if len(found) == 0 {
			t.Errorf("%s: no mistake", text)
		}
		for _, m := range found {
			if strings.Contains(m.Text, "Go ") || strings.Contains(m.Text, "tool.") {
				t.Errorf("%s: %s: in the words of our code", text, m)
			}
		}
	}
}

// TestPoolNames: the names of derived pools contain / and = as separators. So the name of a configured pool must
// contain neither.
func TestPoolNames(t *testing.T) {
	for name, right := range map[string]bool{"payments": true, "payments-2.a": true, "team/payments": false,
		"a=b": false, "": false} {
		list := fmt.Sprintf(`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s",
			"secGroupIds": [], "hostInterface": "eth0", "containerInterface": "eth1",
			"pools": {%q: {"namespaces": ["x"]}}}]}`, name)
		if got := mistakesOf(t, []byte(list)); (len(got) == 0) != right {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// mistakesOf returns the mistakes of a file that is alone in its directory.
func mistakesOf(t *testing.T, b []byte) []Mistake {
	t.Helper()
	file := filepath.Join(t.TempDir(), "10-example.conflist")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c := Load(file)
	found, err := c.Files[0].Mistakes("", c.Beside())
	if err != nil {
		t.Fatal(err)
	}
	return found
}
