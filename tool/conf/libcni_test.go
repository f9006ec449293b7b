// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// lists is the number of lists that TestWhatLibcniRefuses generates.
const lists = 10000

// A generator writes lists that are mostly valid. Sometimes it leaves out a key, or gives a key a wrong value.
type generator struct{ *rand.Rand }

// anything has values of all types, and values that are valid for some key of a list.
var anything = []string{
	`null`, `true`, `false`, `"true"`, `"FALSE"`, `"yes"`, `0`, `1`, `-1`, `1.5`, `1e400`, `""`, `"x"`, `"1.0.0"`,
	`"0.4.0"`, `"1"`, `"1.a.0"`, `"9.9.9"`,
	`[]`, `[null]`, `[1]`, `["1.0.0"]`, `["1.0.0", 1]`, `["x"]`, `[{}]`, `[[]]`, `{}`, `{"a": 1}`, `{"a": true}`,
	`{"type": 1}`, `{"type": "host-local"}`,
	`{"nameservers": "x"}`, `{"nameservers": ["10.0.0.2"], "search": [1]}`, `[{"containerID": 1}]`,
	`[{"containerID": "a", "ifname": "eth0"}]`,
}

func (g generator) pick(from []string) string { return from[g.IntN(len(from))] }

// value returns the valid value of a key. With a probability of 1/n, it returns a random element of the list anything.
func (g generator) value(right string, n int) string {
	if g.IntN(n) == 0 {
		return g.pick(anything)
	}
	return right
}

// object writes an object with some of the keys. Most values are valid. A key may have another case, or occur twice.
// The argument named often lists keys that the object mostly has.
func (g generator) object(keys map[string]string, often string) string {
	var all []string
	for key, right := range keys {
		if g.IntN(3) > 0 && !strings.Contains(often, key) || strings.Contains(often, key) && g.IntN(30) == 0 {
			continue
		}
		if g.IntN(40) == 0 {
			key = strings.ToUpper(key)
		}
		for range 1 + g.IntN(40)/39 {
			all = append(all, fmt.Sprintf("%q: %s", key, g.value(right, 25)))
		}
	}
	return "{" + strings.Join(all, ", ") + "}"
}

func (g generator) member(typ string) string {
	keys := map[string]string{
		"type": fmt.Sprintf("%q", typ), "name": `"x"`, "cniVersion": `"1.0.0"`,
		"capabilities": `{"portMappings": true}`, "ipam": `{"type": "x"}`, "dns": `{"domain": "x"}`,
		"prevResult": `{"ips": []}`, "cni.dev/valid-attachments": `[]`, "args": `{"cni": {}}`,
		"sysctl": `{"net.core.somaxconn": "500"}`,
	}
	often := "type"
	if typ == TypeAll {
		delete(keys, "ipam")
		keys["secGroupIds"], keys["hostInterface"], keys["containerInterface"] = `[]`, `"eth0"`, `"eth1"`
		often += " secGroupIds hostInterface containerInterface"
	}
	return g.object(keys, often)
}

func (g generator) list() string {
	members := []string{g.value(g.member(TypeAll), 40)}
	for range g.IntN(3) {
		members = append(members, g.value(g.member("tuning"), 40))
	}
	return g.object(map[string]string{
		"name": `"pods"`, "cniVersion": `"1.0.0"`, "cniVersions": `["0.4.0", "1.0.0", "1.1.0"]`,
		"disableCheck": `false`, "disableGC": `"True"`,
		"loadOnlyInlinedPlugins": `true`, "plugins": "[" + strings.Join(members, ", ") + "]",
	}, "name cniVersion plugins")
}

// TestWhatLibcniRefuses generates lists. If libcni's parser refuses a list, validate must find a mistake in it.
func TestWhatLibcniRefuses(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	refused, right := 0, 0
	for range lists {
		text := g.list()
		found, err := MistakesIn("none/10-pods.conflist", []byte(text), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			right++
		}
		if _, err := libcni.NetworkConfFromBytes([]byte(text)); err != nil {
			if refused++; len(found) == 0 {
				t.Errorf("%s\nno mistake, but libcni says: %v", text, err)
			}
		}
	}
	t.Logf("%d lists: libcni refuses %d, validate finds nothing wrong with %d", lists, refused, right)
	if refused < lists/5 || right < lists/20 {
		t.Errorf("of %d lists, libcni refuses %d, and %d are right: want more of both", lists, refused, right)
	}
}

// TestRefusedByRuntime checks that validate reports each value that a runtime refuses. The report must name the key and
// the valid values.
func TestRefusedByRuntime(t *testing.T) {
	const ours = `{"type": "cni-ipvlan-vpc-k8s", "secGroupIds": [], "hostInterface": "eth0", ` +
		`"containerInterface": "eth1"%s}`
	list := func(keys, own, others string) string {
		return `{"cniVersion": "1.0.0", "name": "pods"` + keys + `, "plugins": [` +
			fmt.Sprintf(ours, own) + others + `]}`
	}
	for text, want := range map[string]string{
		list(`, "disableCheck": "no"`, "",
			""): `disableCheck: "no": want true or false`,
		list(`, "disableGC": 1`, "",
			""): `disableGC: 1: want true or false`,
		list(`, "loadOnlyInlinedPlugins": null`, "",
			""): `loadOnlyInlinedPlugins: null: want true or false`,
		list(`, "cniVersions": null`, "",
			""): `cniVersions: null: want a value, or no such key`,
		list(``, `, "capabilities": ["x"]`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: capabilities: ["x"]: want an object`,
		list(``, `, "capabilities": {"bandwidth": "yes"}`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: capabilities: bandwidth: "yes": want true or false`,
		list(``, `, "name": 1`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: name: 1: want a string`,
		list(``, `, "cniVersion": 1`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: cniVersion: 1: want a string`,
		list(``, `, "prevResult": "x"`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: prevResult: "x": want an object`,
		list(``, ``,
			`, {"type": "istio-cni", "dns": {"search": [1]}}`): `plugins[1] istio-cni: dns: search: 1: 1: ` +
			`want a string`,
		`{"cniVersion": "1.0.0", "name": "pods", "type": "cni-ipvlan-vpc-k8s"}`: `the file has the configuration of ` +
			`one plugin, and no list: want {"cniVersion": "1.0.0", "name": ..., "plugins": [...]} around the plugin`,
		list(`, "name": "pods"`, "",
			""): `name: the file has this key twice, and the last value counts: remove one of the two`,
		list(``, `, "ipMasq": true, "ipMasq": false`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: ipMasq: the file has this key twice, and the last value counts: ` +
			`remove one of the two`,
		list(``, `, "warm": {"min": 1, "min": 2}`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: warm: min: the file has this key twice, and the last value ` +
			`counts: remove one of the two`,
		list(``, ``,
			`, {"type": "tuning", "mac": "02:00:00:00:00:01"}`): `plugins[1] tuning: mac: the pod's link has the MAC ` +
			`address of its ENI, and cannot have another: remove the key "mac", also from "capabilities"`,
		list(``, `, "nodePortMark": 16384`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: nodePortMark: 16384 (0x4000): want other bits, such as 8192 ` +
			`(0x2000), because kube-proxy masquerades or drops packets with the bits 0xc000`,
		list(``, `, "maxENIs": 1, "interfaceIndex": 1`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: maxENIs: 1: want 2 or more, because maxENIs counts the boot ENI, ` +
			`which has no addresses for pods if interfaceIndex is 1`,
		list(``, `, "eniTags": {"aws:x": ""}`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: eniTags: "aws:x": want another key, because only AWS sets tags ` +
			`that begin with aws:`,
		list(``, `, "eniTags": {"node.k8s.amazonaws.com/no_manage": "true"}`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: eniTags: "node.k8s.amazonaws.com/no_manage": remove this tag, ` +
			`because no program may change an ENI with this tag. After the next boot, the node would no longer use its own ENIs`,
		list(``, `, "pools": {"a": {"eniTags": {"": "x"}}}`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: pools: a: eniTags: "": a tag needs a key`,
		list(``, `, "eniTags": {"`+strings.Repeat("k", 128)+`": ""}`,
			""): `: want a key of at most 127 characters`,
		list(``, `, "eniTags": {"k": "`+strings.Repeat("v", 257)+`"}`,
			""): `: want a value of at most 256 characters`,
		list(``, `, "eniTags": {`+tags(47)+`}`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: eniTags: 47 tags: want at most 46, because EC2 allows 50 tags for ` +
			`an ENI, and the plugin itself sets 4 of them`,
		list(``, `, "pools": {"a": {"secGroupIds": ["web"], "namespaces": ["x"]}}`,
			""): `plugins[0] cni-ipvlan-vpc-k8s: pools: a: secGroupIds: "web": want an ID, not a name, ` +
			`for example sg-0123456789abcdef0`,
	} {
		got := mistakesOf(t, []byte(text))
		if len(got) != 1 || !strings.HasSuffix(got[0].String(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, got, want)
		}
	}
	auto := strings.Replace(list("", "", ""), `"eth0"`, `"auto"`, 1)
	if got := mistakesOf(t, []byte(auto)); len(got) != 1 || !strings.Contains(got[0].Text, `install replaces "auto"`) {
		t.Errorf("hostInterface auto: %v", got)
	}
	for _, right := range []string{
		list(`, "disableCheck": "False", "disableGC": true`, `, "eniTags": {`+tags(46)+`}`, ""),
		list(``, `, "maxENIs": 1`, `, {"type": "tuning", "sysctl": {}}`),
		list(``, `, "maxENIs": 2, "interfaceIndex": 1`, ""),
		list(``, `, "eniTags": {"`+strings.Repeat("ä", 127)+`": "`+strings.Repeat("ä", 256)+`"}`, ""),
	} {
		if got := mistakesOf(t, []byte(right)); len(got) > 0 {
			t.Errorf("%s\n%v", right, got)
		}
	}
}

// tags returns n tags as JSON text.
func tags(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"tag-%d": "x"`, i))
	}
	return strings.Join(all, ", ")
}

// TestSiblings checks that only files that a runtime reads conflict with other files of the same directory.
func TestSiblings(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"10-a.conflist", "20-b.conflist"} {
		text := `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "cni-ipvlan-vpc-k8s", "secGroupIds": ` +
			`[], "hostInterface": "eth0", "containerInterface": "eth1"}]}`
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for alone, want := range map[bool]int{true: 0, false: 1} {
		c, beside := Load(filepath.Join(dir, "10-a.conflist")), Load(dir)
		if alone {
			beside = nil
		}
		got, err := c.Files[0].Mistakes("", beside)
		if err != nil || len(got) != want {
			t.Errorf("alone %v: %v, %v, want %d", alone, got, err, want)
		}
	}
}
