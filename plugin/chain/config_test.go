// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// An object is a Config that can also be written as JSON.
type object struct {
	IPAM   lease.Config
	IPVlan ipvlan.Config
	PTP    ptp.Config
	Egress egress.Config
}

func (o *object) describe(j *codec.Codec) {
	c := Config{o.IPAM, o.IPVlan, o.PTP, o.Egress}
	c.Describe(j)
	*o = object{c.ipam, c.ipvlan, c.ptp, c.egress}
}

func (o *object) UnmarshalJSON(text []byte) error {
	var c Config
	err := c.UnmarshalJSON(text)
	*o = object{c.ipam, c.ipvlan, c.ptp, c.egress}
	return err
}

// MarshalJSON writes the keys of all parts into one object. Two parts have the key runtimeConfig, and MarshalJSON
// merges their values.
func (o *object) MarshalJSON() ([]byte, error) {
	all := map[string]any{}
	for _, part := range []any{o.IPAM, o.IPVlan, o.PTP, o.Egress} {
		var keys map[string]any
		text, err := json.Marshal(part)
		if err := errors.Join(err, json.Unmarshal(text, &keys)); err != nil {
			return nil, err
		}
		for key, value := range keys {
			inner, ok := value.(map[string]any)
			if before, both := all[key].(map[string]any); ok && both {
				maps.Copy(inner, before)
			}
			all[key] = value
		}
	}
	return json.Marshal(all)
}

func TestConfigRead(t *testing.T) { codectest.Reads(t, (*object).describe) }

func FuzzConfigRead(f *testing.F) {
	codectest.Fuzz(f, (*object).describe, append(codectest.Plugins(f, "../../conflist-examples"),
		`{"secGroupIds":[],"mtu":1500,"hostInterface":"eth0","runtimeConfig":{"bandwidth":{"ingressRate":1},"io.kubernetes.cri.pod-annotations":{"a":"b"}}}`,
		`{"mtu":1,"mtu":2,"HostInterface":"eth0","runtimeConfig":{"bandwidth":null},"ipam":{"type":7},"warm":{"min":1.0}}`)...)
}

// TestConfig: each part gets its own keys, and the parts ipvlan and ptp both get the key mtu.
func TestConfig(t *testing.T) {
	var c Config
	if err := json.Unmarshal([]byte(`{"interfaceIndex":2,"mode":"l3s","mtu":1400,"hostInterface":"eth0","type":"x"}`),
		&c); err != nil {
		t.Fatal(err)
	}
	var want object
	want.IPAM.InterfaceIndex = 2
	want.IPVlan.Mode, want.IPVlan.MTU = "l3s", 1400
	want.PTP.HostInterface, want.PTP.MTU = "eth0", 1400
	if diff := cmp.Diff(want, object{c.ipam, c.ipvlan, c.ptp, c.egress},
		cmpopts.IgnoreUnexported(lease.Config{}, ptp.Config{}, egress.Config{})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestConfigMistakes: the error has the mistakes of all parts, each once, in the words of the combined plugin.
func TestConfigMistakes(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		want         []string // beginnings of the lines
	}{
		{"right", `{"secGroupIds":[],"hostInterface":"eth0","containerInterface":"eth1","mtu":1400}`, nil},
		{"empty", `{}`, []string{"secGroupIds must be specified", "hostInterface must be specified",
			"containerInterface must be specified"}},
		{"one of each",
			`{"provision":"some","mode":"l4","mtu":9,"hostInterface":"eth0","containerInterface":"eth1","nodePorts":"x","egressPort":0}`,
			[]string{`provision: "some"`, `mode: "l4": want l2`, "mtu: 9: want 68 to 65535 bytes", `nodePorts: "x"`,
				"egressPort: 0"}},
		{"a loop in l3s",
			`{"secGroupIds":[],"hostInterface":"eth0","containerInterface":"eth1","ipMasq":true,"mode":"l3s"}`,
			[]string{`mode: "l3s": want "l2", or serviceLoop "none", because with l3s a service loop sees no ` +
				`packets`}},
		{"an egress in l3s",
			`{"secGroupIds":[],"hostInterface":"eth0","containerInterface":"eth1","ipMasq":true,"serviceLoop":"none","mode":"l3s","egress":{"x":{"gateways":["172.20.0.9"],"destinations":["203.0.113.0/24"],"namespaces":["a"],"routers":["b"]}}}`,
			[]string{`mode: "l3s": want "l2", because with l3s the filters of an egress see no packets`}},
		{"l3s alone",
			`{"secGroupIds":[],"hostInterface":"eth0","containerInterface":"eth1","ipMasq":true,"serviceLoop":"none","mode":"l3s"}`, nil},
		{"no data path", `{"secGroupIds":[],"hostInterface":"eth0","containerInterface":"eth1","dataPath":"vlan"}`,
			[]string{`dataPath: "vlan": want ipvlan or veth`}},
		{"routed pods", `{"secGroupIds":[],"hostInterface":"eth0","containerInterface":"eth1","dataPath":"veth"}`, nil},
		{"marks of ENIs", `{"secGroupIds":[],"hostInterface":"eth0","containerInterface":"eth1","nodePortMark":128,` +
			`"pools":{"a":{"namespaces":["a"],"dataPath":"veth"}}}`,
			[]string{`nodePortMark: 128 (0x80): with dataPath "veth"`}},
		{"an egress of routed pods alone", `{"secGroupIds":[],"hostInterface":"eth0","containerInterface":"eth1",` +
			`"dataPath":"veth","egress":{"x":{"gateways":["172.20.0.9"],"destinations":["203.0.113.0/24"],` +
			`"namespaces":["a"],"routers":["b"]}}}`, []string{`egress: all pools have dataPath "veth"`}},
		{"another's ipam",
			`{"secGroupIds":[],"hostInterface":"eth0","containerInterface":"eth1","ipam":{"type":"host-local"}}`,
			[]string{`ipam: "host-local": this plugin calls no other plugin for addresses; move the keys in ` +
				`"ipam" to the object of this plugin`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Config
			if err := json.Unmarshal([]byte(tt.config), &c); err != nil {
				t.Fatal(err)
			}
			read := object{c.ipam, c.ipvlan, c.ptp, c.egress}
			var got []string
			if err := c.Validate(); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			for i, line := range got {
				if i < len(tt.want) && strings.HasPrefix(line, tt.want[i]) {
					got[i] = tt.want[i]
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if c.ptp.MTU != read.PTP.MTU || c.ipvlan.IPAM != read.IPVlan.IPAM {
				t.Errorf("Validate has changed mtu %d or ipam %v", c.ptp.MTU, c.ipvlan.IPAM)
			}
		})
	}
}

// TestConfigType: a value of the wrong type counts as one mistake, even if two parts read it. The plugin reads the
// other values, and a DEL uses them.
func TestConfigType(t *testing.T) {
	var c Config
	err := json.Unmarshal([]byte(`{"mtu":"big","interfaceIndex":1,"hostInterface":"eth0"}`), &c)
	if err == nil || strings.Count(err.Error(), "mtu") != 1 {
		t.Errorf("got %v, want one mistake, in mtu", err)
	}
	if c.ipam.InterfaceIndex != 1 || c.ptp.HostInterface != "eth0" {
		t.Errorf("read interfaceIndex %d and hostInterface %q", c.ipam.InterfaceIndex, c.ptp.HostInterface)
	}
}

// TestConfigAllTypes: the error of ADD names the key of each value of the wrong type, and all other mistakes.
func TestConfigAllTypes(t *testing.T) {
	err := plugin.Decode([]byte(`{"mtu":"big","warm":{"min":"5","max":[]},"pools":{"a":{"secGroupIds":{},"reuseIPWait":1.5}},"requests":[{"namespaces":["*"],"max":true}],`+
		`"ipMasq":"yes","nodePortMark":-1,"secGroupIds":["sg-1"],"hostInterface":"eth0","nodePorts":"x"}`), new(Config))
	want := []string{
		`mtu: "big": want a whole number`,
		`pools: a: reuseIPWait: 1.5: want a whole number`,
		`pools: a: secGroupIds: {}: want an array`,
		`requests: 1: max: true: want a whole number`,
		`warm: max: []: want a whole number`,
		`warm: min: "5": want a whole number`,
		`ipMasq: "yes": want true or false`,
		`nodePortMark: -1: want a whole number from 0 to 4294967295`,
		`containerInterface must be specified`,
		`nodePorts: "x"`,
	}
	var got []string
	for line := range strings.Lines(err.Error()) {
		got = append(got, strings.TrimSuffix(line, "\n"))
	}
	slices.Sort(got)
	slices.Sort(want)
	for i := range got {
		if i < len(want) && strings.HasPrefix(got[i], want[i]) {
			got[i] = want[i]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if err := plugin.Decode([]byte(`{"mtu": `), new(Config)); err == nil {
		t.Error("no JSON: no error")
	}
}

// TestSameRule: all keys for one kind of value have the same rule and the same message.
func TestSameRule(t *testing.T) {
	const cidr, address, link = "want a CIDR or an address, ", "want an address, ", "the name "
	const namespace = "want a namespace, or the beginning of a namespace with a * after it"
	const id = "want an ID, not a name, for example "
	prefixes := []string{`"routeToCidrs": [%q]`, `"hostCidrs": [%q]`, `"egress": {"x": {"destinations": [%q]}}`,
		`"egress": {"x": {"except": [%q]}}`,
		`"egress": {"x": {"clients": [%q]}}`, `"egress": {"x": {"routerCidrs": [%q]}}`}
	gateways := []string{`"egress": {"x": {"gateways": [%q]}}`}
	links, newLinks := []string{`"master": %q`, `"hostInterface": %q`}, []string{`"containerInterface": %q`}
	namespaces := []string{`"pools": {"a": {"namespaces": [%q]}}`, `"pools": {"a": {"selectable": [%q]}}`,
		`"requests": [{"namespaces": [%q]}]`,
		`"egress": {"x": {"namespaces": [%q]}}`, `"egress": {"x": {"selectable": [%q]}}`,
		`"egress": {"x": {"routers": [%q]}}`}
	for _, tt := range []struct {
		keys        []string
		value, want string // empty if the value is right
	}{
		{prefixes, "10.8.0.0/16", ""}, {prefixes, "10.8.0.5", ""}, {prefixes, "10.8.0.5/16", ""},
		{prefixes, "2001:db8::5/48", ""},
		{prefixes, "::ffff:10.8.0.0/112", ""}, {prefixes, "::ffff:10.8.0.5", ""}, {prefixes, "", cidr},
		{prefixes, "x", cidr},
		{prefixes, "10.8.0.0/33", cidr}, {prefixes, "10.8.0/16", cidr}, {prefixes, "010.8.0.0/16", cidr},
		{prefixes, "fe80::1%eth0", cidr},
		{prefixes, "::ffff:10.8.0.0/90", cidr}, {prefixes, " 10.8.0.0/16", cidr}, {gateways, "10.8.0.5", ""},
		{gateways, "::ffff:10.8.0.5", ""},
		{gateways, "", address},
		{gateways, "10.8.0.5/16", address}, {gateways, "x", address}, {gateways, "fe80::1%eth0", address},
		{links, "eth0", ""}, {links, "eth 0", link}, {links, "sixteen-bytes-up", link}, {links, "..", link},
		{newLinks, "eth1", ""},
		{newLinks, "eth 0", link}, {newLinks, "lo", link}, {namespaces, "shop", ""}, {namespaces, "pay*", ""},
		{namespaces, "", namespace},
		{namespaces, "a*b", namespace}, {[]string{`"requests": [{"subnets": [%q]}]`}, "subnet-1", ""},
		{[]string{`"requests": [{"subnets": [%q]}]`}, "web", id + "subnet-"},
		{[]string{`"requests": [{"securityGroups": [%q]}]`}, "sg-1", ""},
		{[]string{`"requests": [{"securityGroups": [%q]}]`}, "sg-", id + "sg-"},
		{[]string{`"requests": [{"securityGroups": [%q]}]`}, "web", id + "sg-"},
	} {
		for _, key := range tt.keys {
			text := fmt.Sprintf("{"+key+"}", tt.value)
			var c Config
			if err := json.Unmarshal([]byte(text), &c); err != nil {
				t.Fatal(err)
			}
			said, about := "", fmt.Sprintf(": %q: ", tt.value)
			for line := range strings.Lines(fmt.Sprintln(c.Validate())) {
				if _, rest, is := strings.Cut(line, about); is {
					said = rest
				}
			}
			if !strings.HasPrefix(said, tt.want) || tt.want == "" && said != "" {
				t.Errorf("%s: %q, want %q", text, said, tt.want)
			}
		}
	}
}
