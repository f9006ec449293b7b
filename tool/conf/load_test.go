// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

const onePlugin = `{"cniVersion": "1.0.0", "name": "pods", "type": "cni-ipvlan-vpc-k8s", "interfaceIndex": 1,
	"secGroupIds": ["sg-1"], "hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true,
	"egress": {"partner": {"gateways": ["172.20.0.9"], "destinations": ["203.0.113.0/24"], "namespaces": ["shop"]}}}`

// written writes files into a new directory, and returns the directory.
func written(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestWherever puts our network into each kind of file from which a runtime or Multus reads networks. All methods of
// the loaded configuration must find the network.
func TestWherever(t *testing.T) {
	list := `{"cniVersion": "1.0.0", "name": "pods", "plugins": [` + onePlugin + `]}`
	for name, files := range map[string]map[string]string{
		"a list":    {"10-pods.conflist": list},
		"NAME.conf": {"pods.conf": onePlugin},
		"NAME.json": {"pods.json": onePlugin},
		"a delegate that is a list": {"00-multus.conf": `{"name": "m", "type": "multus", "delegates": [{"type": ` +
			`"bridge", "name": "b"}, ` + list + `]}`},
		"a delegate that is a plugin": {"00-multus.conf": `{"name": "m", "type": "multus-shim", "delegates": [` +
			onePlugin + `]}`},
		"all of it a drop-in": {"10-pods.conflist": `{"cniVersion": "1.0.0", "name": "pods"}`,
			"pods/10-ours.conf": onePlugin},
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t, files)
			c := Load(dir)
			networks, err := c.Networks()
			if err != nil || len(networks) != 1 || networks[0].Name != "pods" || networks[0].IPAM == nil ||
				!networks[0].Pair.IPMasq {
				t.Errorf("Networks: %+v, %v", networks, err)
			}
			if all, err := c.All(); err != nil || len(all) != 1 || all[0].Name != "pods" ||
				all[0].IPAM.InterfaceIndex != 1 {
				t.Errorf("All: %v, %v", all, err)
			}
			if p, err := c.Common(); err != nil || p.Provision != lease.ProvisionFull {
				t.Errorf("Common: %+v, %v", p, err)
			}
			if e, err := c.Egress(); err != nil || len(e) != 1 {
				t.Errorf("Egress: %v, %v", e, err)
			}
			if n, m, all := len(c.Pools()), len(c.PoliciesOf("pods")), len(c.Whole()); n != 1 || m != 1 || all != 1 {
				t.Errorf("policies: %d, of the network %d, of all %d", n, m, all)
			}
			ours := c.OurFiles()
			if len(ours) != 1 || len(c.Networked()) != 1 {
				t.Fatalf("files: %v, networks: %v", ours, c.Networked())
			}
			if found, err := ours[0].Mistakes("", c); err != nil || len(found) > 0 {
				t.Errorf("mistakes: %v, %v", found, err)
			}
			if lacking := c.Networked()[0].Missing(t.TempDir()); len(lacking) != 2 {
				t.Errorf("programs that are missing: %v", lacking)
			}
		})
	}
}

// TestMultusCopies checks that a list and its copy in the configuration of Multus count as one network.
func TestMultusCopies(t *testing.T) {
	list := `{"cniVersion": "1.0.0", "name": "pods", "plugins": [` + onePlugin + `]}`
	dir := written(t, map[string]string{"00-multus.conf": `{"name": "m", "type": "multus", "delegates": [` + list +
		`]}`, "10-pods.conflist": list})
	c := Load(dir)
	if networks, err := c.Networks(); err != nil || len(networks) != 1 {
		t.Errorf("%v, %v", networks, err)
	}
	for _, file := range c.OurFiles() {
		if found, err := file.Mistakes("", c); err != nil || len(found) > 0 {
			t.Errorf("%s: %v, %v", file.Path, found, err)
		}
	}
	bad := strings.Replace(list, `"interfaceIndex": 1`, `"interfaceIndex": -1`, 1)
	dir = written(t,
		map[string]string{"00-multus.conf": `{"name": "m", "type": "multus", "delegates": [{"type": "bridge"}, ` +
			bad + `]}`})
	c = Load(dir)
	found, err := c.Files[0].Mistakes("", c)
	if err != nil || len(found) != 1 || !strings.HasSuffix(found[0].String(),
		"00-multus.conf: delegates[1] plugins[0] cni-ipvlan-vpc-k8s: interfaceIndex: -1: want 0 or more") {
		t.Errorf("%v, %v", found, err)
	}
}

// TestDropIns: libcni reads plugins from a directory, and appends them to a list. Load must append the same plugins. If
// libcni refuses a file, Mistakes must report a mistake.
func TestDropIns(t *testing.T) {
	list := func(keys string) string {
		return `{"cniVersion": "1.0.0", "name": "pods"` + keys + `, "plugins": [` + onePlugin + `]}`
	}
	for name, tt := range map[string]struct {
		files   map[string]string
		mistake string // part of the mistake; empty: no mistake
	}{
		"none": {map[string]string{"10-pods.conflist": list("")}, ""},
		"harmless": {map[string]string{"10-pods.conflist": list(""), "pods/10-mesh.conf": `{"type": "istio-cni"}`,
			"pods/README": "x", "other/10.conf": "{"}, ""},
		"inlined only": {map[string]string{"10-pods.conflist": list(`, "loadOnlyInlinedPlugins": true`),
			"pods/10-sbr.conf": `{"type": "sbr"}`}, ""},
		"inlined, text": {map[string]string{"10-pods.conflist": list(`, "loadOnlyInlinedPlugins": "TRUE"`),
			"pods/10-sbr.conf": `{`}, ""},
		"it disturbs": {map[string]string{"10-pods.conflist": list(""), "pods/10-sbr.conf": `{"type": "sbr"}`},
			"plugins[1] sbr of pods/10-sbr.conf: this plugin moves the routes"},
		"no type": {map[string]string{"10-pods.conflist": list(""), "pods/10-x.conf": `{}`},
			"plugins[1] of pods/10-x.conf: type must be specified"},
		"wrong type": {map[string]string{"10-pods.conflist": list(""),
			"pods/10-x.conf": `{"type": "x", "capabilities": []}`},
			"plugins[1] x of pods/10-x.conf: capabilities: []: want an object"},
		"cannot be read": {map[string]string{"10-pods.conflist": list(""), "pods/10-x.conf": `{`},
			"pods/10-x.conf, which runtimes append to this list: unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t, tt.files)
			file := filepath.Join(dir, "10-pods.conflist")
			c := Load(file)
			found, err := c.Files[0].Mistakes("", c.Beside())
			if err != nil || tt.mistake == "" && len(found) > 0 || tt.mistake != "" &&
				(len(found) != 1 || !strings.Contains(found[0].String(), tt.mistake)) {
				t.Errorf("%v, %v, want %q", found, err, tt.mistake)
			}
			theirs, err := libcni.NetworkConfFromFile(file)
			if err != nil && len(found) == 0 {
				t.Errorf("no mistake, but libcni says %v", err)
			}
			if err != nil || c.Files[0].Failed != nil {
				return
			}
			var got, want []string
			for _, m := range c.Files[0].Lists[0].Plugins {
				got = append(got, m.Type)
			}
			for _, p := range theirs.Plugins {
				want = append(want, p.Network.Type)
			}
			if !slices.Equal(got, want) {
				t.Errorf("the chain is %v, that of libcni %v", got, want)
			}
		})
	}
}

// TestMistake checks that All leaves out a network with a mistake, and that the error names the mistake. If Load cannot
// parse a file, All returns an error only if no other file has a network of ours. Whole returns no network if one has a
// mistake or a file cannot be parsed.
func TestMistake(t *testing.T) {
	list := func(name string) string {
		plugin := strings.Replace(onePlugin, `"name": "pods"`, `"name": "`+name+`"`, 1)
		return `{"cniVersion": "1.0.0", "name": "` + name + `", "plugins": [` + plugin + `]}`
	}
	bad := strings.Replace(list("bad"), `"interfaceIndex": 1`, `"interfaceIndex": -1`, 1)
	for name, tt := range map[string]struct {
		files               map[string]string
		good, whole, common int
		failed, unread      string
	}{
		"all right": {map[string]string{"10.conflist": list("a"), "20.conflist": list("b")}, 2, 2, 1, "", ""},
		"one mistaken": {map[string]string{"10.conflist": bad, "20.conflist": list("b")}, 1, 0, 0,
			"10.conflist: interfaceIndex: -1", ""},
		"all mistaken": {map[string]string{"10.conflist": bad, "20.conflist": bad}, 0, 0, 0,
			"20.conflist: interfaceIndex: -1", ""},
		"one unread": {map[string]string{"10.conflist": "{", "20.conflist": list("b")}, 1, 0, 1, "",
			"10.conflist: unexpected end"},
		"only unread": {map[string]string{"10.conflist": "{"}, 0, 0, 0, "10.conflist: unexpected end",
			"10.conflist: unexpected end"},
		"none is ours": {map[string]string{"10.conflist": `{"name": "x", "plugins": [{"type": "bridge"}]}`}, 0, 0, 1,
			ErrNone.Error(), ""},
		"no file": {nil, 0, 0, 1, ErrNone.Error(), ""},
	} {
		c := Load(written(t, tt.files))
		all, failed := c.All()
		_, uncommon := c.Common()
		if len(all) != tt.good || len(c.Pools()) != min(tt.good, 1) || len(c.Whole()) != tt.whole ||
			(uncommon == nil) != (tt.common == 1) {
			t.Errorf("%s: %d networks, %d pools, %d of all, common: %v", name, len(all), len(c.Pools()), len(c.Whole()),
				uncommon)
		}
		for said, want := range map[string]string{fmt.Sprint(failed): tt.failed, fmt.Sprint(c.Unread()): tt.unread} {
			if !strings.Contains(said, want) || want == "" && said != "<nil>" {
				t.Errorf("%s: %s, want %q", name, said, want)
			}
		}
	}
}
