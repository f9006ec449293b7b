// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nic

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
)

var sameAddr = cmpopts.EquateComparable(netip.Addr{})

func addrsOf(texts ...string) (all []netip.Addr) {
	for _, t := range texts {
		all = append(all, netip.MustParseAddr(t))
	}
	return all
}

func config(t *testing.T, annotation, members string) *Asked {
	t.Helper()
	var a Asked
	if err := json.Unmarshal([]byte("{"+members+"}"), &a); err != nil {
		t.Fatal(err)
	}
	if annotation != "" {
		a.RuntimeConfig.Annotations = map[string]string{Annotation: annotation}
	}
	return &a
}

func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		annotation, members, ifName string
		want                        []Request
	}{
		{"", ``, "eth0", nil},
		{"", `"args": {"cni": null}`, "eth0", nil},
		{"", `"args": {"cni": {"labels": [{"key": "a", "value": "b"}]}}`, "eth0", nil},
		{`[{}]`, ``, "eth0", []Request{{}}},
		{`[{"subnet": "subnet-1"}]`, ``, "eth0", []Request{{Subnet: "subnet-1"}}},
		{`[{"subnet": "subnet-1"}]`, ``, "net1", nil}, // an interface of another network
		{`[{"subnet": "subnet-1", "ip": "192.168.0.12"}]`, ``, "eth0",
			[]Request{{Subnet: "subnet-1", Addrs: addrsOf("192.168.0.12")}}},
		{`[{"eni": "eni-0123456789abcdef0"}]`, ``, "eth0", []Request{{ENI: "eni-0123456789abcdef0"}}},
		{`[{"name": "eth0", "subnet": "subnet-1", "ip": "192.168.0.12", "securityGroups": ["sg-2", "sg-1", "sg-2"]}, ` +
			`{"name": "data", "eni": "eni-1", "exclusive": true}, {}]`, ``, "eth0",
			[]Request{{Name: "eth0", Subnet: "subnet-1", Addrs: addrsOf("192.168.0.12"),
				SecurityGroups: []string{"sg-1", "sg-2"}}, {Name: "data", ENI: "eni-1", Exclusive: true}, {}}},
		{"", `"runtimeConfig": {"ips": ["10.0.1.7/24", "fd00::7"]}`, "net1",
			[]Request{{Addrs: addrsOf("10.0.1.7", "fd00::7")}}},
		{"", `"runtimeConfig": {"deviceID": "eni-1"}`, "net1", []Request{{ENI: "eni-1"}}},
		{"", `"runtimeConfig": {"deviceID": "eni-1", "ips": ["10.0.1.7"]}, "args": {"cni": {"eni": "eni-1", ` +
			`"exclusive": true}}`, "net1", []Request{{ENI: "eni-1", Addrs: addrsOf("10.0.1.7"), Exclusive: true}}},
		{"", `"args": {"cni": {"subnet": "subnet-1", "ips": ["10.0.1.7"], "securityGroups": ["sg-1"]}}`, "net1",
			[]Request{{Subnet: "subnet-1", Addrs: addrsOf("10.0.1.7"), SecurityGroups: []string{"sg-1"}}}},
	} {
		got, err := config(t, tt.annotation, tt.members).Requests(tt.ifName)
		if diff := cmp.Diff(tt.want, got, sameAddr); diff != "" || err != nil {
			t.Errorf("%s %s: %v: -want +got\n%s", tt.annotation, tt.members, err, diff)
		}
	}
}

// TestMistakes: each error names the interface, the key and the value, and says what would be right.
func TestMistakes(t *testing.T) {
	const asked = "annotation cni-ipvlan-vpc-k8s/nics: "
	for _, tt := range []struct{ annotation, members, want string }{
		{`{"subnet": "subnet-1"}`, ``, asked +
			`the value is not the JSON that is expected: json: cannot unmarshal object into Go value of type ` +
			`[]map[string]json.RawMessage: want a list with an object for each interface, for example ` +
			`[{"subnet": "subnet-1"}]`},
		{`[{"subnet": "subnet-1"}`, ``, asked +
			`the value is not the JSON that is expected: unexpected end of JSON input: want a list with an object ` +
			`for each interface, for example [{"subnet": "subnet-1"}]`},
		{`[{}] []`, ``, asked +
			`the value is not the JSON that is expected: invalid character '[' after top-level value: want a list ` +
			`with an object for each interface, for example [{"subnet": "subnet-1"}]`},
		{`[]`, ``, asked + `the list is empty: want an object for each interface, or no annotation`},
		{`[{"subnets": "subnet-1", "vpc": 1}]`, ``, asked +
			"interface 1: \"subnets\": there is no such key: the keys are name, subnet, ip, securityGroups, eni and " +
			"exclusive\n\"vpc\": there is no such key: the keys are name, subnet, ip, securityGroups, eni and " +
			"exclusive"},
		{`[{}, {"subnet": "10.0.1.0/24"}]`, ``, asked +
			`interface 2: subnet: "10.0.1.0/24": want the ID of a subnet, for example subnet-0123456789abcdef0`},
		{`[{"subnet": 7}]`, ``, asked + `interface 1: subnet: 7: want a string`},
		{`[{"securityGroups": "sg-1"}]`, ``, asked + `interface 1: securityGroups: "sg-1": want a list of strings`},
		{`[{"securityGroups": ["web"]}]`, ``, asked +
			`interface 1: securityGroups: "web": want IDs of security groups, for example sg-0123456789abcdef0`},
		{`[{"ip": "10.0.1"}]`, ``, asked + `interface 1: ip: "10.0.1": want an address, for example 10.0.1.7`},
		{`[{"ip": "fe80::1%eth0"}]`, ``, asked +
			`interface 1: ip: "fe80::1%eth0": want an address, for example 10.0.1.7`},
		{`[{"eni": "i-1"}]`, ``, asked +
			`interface 1: eni: "i-1": want the ID of an ENI, for example eni-0123456789abcdef0`},
		{`[{"eni": "eni-1", "subnet": "subnet-1"}]`, ``, asked +
			`interface 1: eni: eni-1: want no subnet and no securityGroups beside eni, because the ENI already ` +
			`has both`},
		{`[{"name": "net1"}]`, ``, asked +
			`interface 1: name: "net1": want eth0, the name of the first interface, or no name`},
		{`[{}, {"name": "eth0"}]`, ``, asked + `interface 2: name: "eth0": another interface of the pod has this name`},
		{`[{}, {"name": "data"}, {"name": "data"}]`, ``, asked +
			`interface 3: name: "data": another interface of the pod has this name`},
		{`[{}, {"name": "a/b"}]`, ``, asked +
			`interface 2: name: "a/b": the name contains / or : or whitespace characters: want 1 to 15 bytes of ` +
			`printable ASCII without /, : and %`},
		{`[{}, {"name": "all"}]`, ``, asked +
			`interface 2: name: "all": the name is one that the kernel uses itself: want 1 to 15 bytes of printable ` +
			`ASCII without /, : and %`},
		{`[{}, {"name": "data%d"}]`, ``, asked +
			`interface 2: name: "data%d": the name contains %, which the kernel replaces by a number: want 1 to 15 ` +
			`bytes of printable ASCII without /, : and %`},
		{`[{}, {"name": "lo"}]`, ``, asked +
			`interface 2: name: "lo": the name is one that the kernel uses itself: want 1 to 15 bytes of printable ` +
			`ASCII without /, : and %`},
		{`[{}, {"name": "egress4"}]`, ``, asked +
			`interface 2: name: "egress4": the name begins with egress, as the links of an egress do: want 1 to 15 ` +
			`bytes of printable ASCII without /, : and %`},
		{`[{}, {"name": "a\u001b[2J"}]`, ``, asked +
			`interface 2: name: "a\x1b[2J": the name contains a character that is not printable ASCII: want 1 to 15 ` +
			`bytes of printable ASCII without /, : and %`},
		{`[{}, {"name": "eth7\u0000"}]`, ``, asked +
			`interface 2: name: "eth7\x00": the name contains a zero byte: want 1 to 15 bytes of printable ASCII ` +
			`without /, : and %`},
		{`[{"ip": "10.0.1.7"}, {"ip": "10.0.1.7"}]`, ``, asked +
			`interface 2: ip: 10.0.1.7: another interface of the pod asks for this address`},
		{`[{"eni": "eni-1"}, {"eni": "eni-1", "exclusive": true}]`, ``, asked +
			`interface 2: eni: eni-1: two interfaces of the pod ask for this ENI, and one of the two has ` +
			`exclusive: true`},
		{`[{}]`, `"runtimeConfig": {"ips": ["10.0.1.7"]}`,
			`the interface eth0 has two requests, one by the annotation cni-ipvlan-vpc-k8s/nics, and one by ips, ` +
				`deviceID or args.cni: want only one of these requests`},
		{"", `"runtimeConfig": {"ips": ["10.0.1.7", "10.0.1.8"]}`,
			`runtimeConfig: ips: ["10.0.1.7" "10.0.1.8"]: want at most one address of each family`},
		{"", `"runtimeConfig": {"mac": "0a:00:00:00:00:01"}`,
			`runtimeConfig: mac: "0a:00:00:00:00:01": want no mac, because an interface has the MAC address of ` +
				`its ENI`},
		{"", `"runtimeConfig": {"deviceID": "0000:00:06.0"}`,
			`runtimeConfig: deviceID: "0000:00:06.0": want the ID of an ENI, for example eni-0123456789abcdef0`},
		{"", `"runtimeConfig": {"deviceID": "eni-1"}, "args": {"cni": {"eni": "eni-2"}}`,
			`runtimeConfig: deviceID: "eni-1": args.cni asks for the ENI eni-2: want only one of these ENIs`},
		{"", `"runtimeConfig": {"ips": ["10.0.1.7"]}, "args": {"cni": {"ip": "10.0.1.8"}}`,
			`runtimeConfig: ips: ["10.0.1.7"]: args.cni asks for 10.0.1.8: want only one of these requests`},
		{"", `"args": {"cni": {"subnets": []}}`,
			`args.cni: "subnets": there is no such key: the keys are name, subnet, ip, securityGroups, eni and ` +
				`exclusive`},
		{"", `"args": {"cni": {"name": "net1"}}`,
			`args.cni: name: "net1": want no name, because CNI_IFNAME is the name of the interface`},
		{"", `"args": {"cni": {"ip": "10.0.1.7", "ips": ["10.0.1.8"]}}`,
			`args.cni: ip and ips: want only one of these keys`},
	} {
		_, err := config(t, tt.annotation, tt.members).Requests(Primary)
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s %s:\n got %v\nwant %s", tt.annotation, tt.members, err, tt.want)
		}
	}
}

// TestLimits: for text of any size, the error is short, and has no control characters.
func TestLimits(t *testing.T) {
	const size = 256 << 10
	times := func(text string) string { return strings.Repeat(text, size/len(text)) }
	escape := func(text string) string { b, _ := json.Marshal(text); return string(b) }
	hostile := "\x1b[2J\u202e\x00"
	for _, tt := range []struct{ annotation, members string }{
		{"[" + times(`{"a":1},`) + "{}]", ``},
		{"[" + times(`{},`)[:mostText-3] + "]", ``},
		{`[{"subnet":` + times("7")[:mostText-100] + `}]`, ``},
		{`[{` + times(`"` + strings.Repeat("x", 20) + `":1,`)[:10000-10000%25] + `"y":1}]`, ``},
		{`[{"eni":` + escape(strings.Repeat(hostile, 100)) + `,"subnet":` + escape(strings.Repeat(hostile, 100)) +
			`,"name":` + escape(hostile) + `}]`, ``},
		{`[{"securityGroups":[` + strings.Repeat(`"x",`, 5000) + `"x"]}]`, ``},
		{times("["), ``},
		{"", `"runtimeConfig": {"ips": [` + times(`"10.0.0.1",`) + `"10.0.0.1"]}`},
		{"", `"runtimeConfig": {"ips": ["` + times("x") + `"]}`},
		{"", `"runtimeConfig": {"mac": "` + times("x") + `"}`},
		{"", `"runtimeConfig": {"deviceID": "` + times("x") + `"}`},
		{"", `"runtimeConfig": {"deviceID": "eni-` + times("0") + `"}`},
		{"", `"args": {"cni": {"ips": [` + times(`"10.0.0.1",`) + `"x"]}}`},
		{"", `"args": {"cni": {"eni": "eni-1", ` + times(`"k":1,`) + `"l": 1}}`},
	} {
		_, err := config(t, tt.annotation, tt.members).Requests(Primary)
		if err == nil {
			t.Errorf("%.60s %.60s: no error", tt.annotation, tt.members)
			continue
		}
		odd := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
		if text := err.Error(); len(text) > 4000 || strings.ContainsFunc(text, odd) {
			t.Errorf("%.60s %.60s: an error of %d bytes: %.200q", tt.annotation, tt.members, len(text), text)
		}
	}
}

// TestAsks: Asks reports whether a pod asks for anything. It does not parse the request.
func TestAsks(t *testing.T) {
	for _, tt := range []struct {
		annotation, members, ifName string
		want                        bool
	}{
		{"", ``, "eth0", false},
		{"no JSON", ``, "eth0", true},
		{"no JSON", ``, "net1", false},
		{"", `"runtimeConfig": {"ips": ["x"]}`, "net1", true},
		{"", `"runtimeConfig": {"deviceID": "x"}`, "net1", true},
		{"", `"args": {"cni": {"exclusive": true}}`, "net1", true},
		{"", `"args": {"cni": null}`, "net1", false},
	} {
		a := config(t, tt.annotation, tt.members)
		if got := a.Asks(tt.ifName); got != tt.want {
			t.Errorf("%s %s: %v, want %v", tt.annotation, tt.members, got, tt.want)
		}
		if n := testing.AllocsPerRun(10, func() { a.Asks(tt.ifName) }); n > 0 {
			t.Errorf("%s %s: %v allocations", tt.annotation, tt.members, n)
		}
	}
}

// FuzzAnnotation checks that any annotation leads to requests that a pod may make, or to an error that is short and
// printable.
func FuzzAnnotation(f *testing.F) {
	f.Add(`[{"name": "eth0", "subnet": "subnet-1", "ip": "192.168.0.12", "securityGroups": ["sg-2", "sg-1"]}, ` +
		`{"name": "data", "eni": "eni-1", "exclusive": true}, {}]`)
	f.Add(`[{"ip": "10.0.1.7/24"}, {"ip": "fd00::7", "x": 1}]`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		a := Asked{RuntimeConfig: Capabilities{Annotations: map[string]string{Annotation: text}}}
		rs, err := a.Requests(Primary)
		if err != nil {
			if odd := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }; len(err.Error()) > 8000 ||
				strings.ContainsFunc(err.Error(), odd) {
				t.Errorf("%q: an error of %d bytes: %.200q", text, len(err.Error()), err)
			}
			return
		}
		names := map[string]bool{}
		for i, r := range rs {
			if r.Name != "" && (ifname.Refused(r.Name) != "" || names[r.Name]) || i > 0 && r.Name == Primary {
				t.Errorf("%q: the name %q", text, r.Name)
			}
			names[r.Name] = true
			if len(r.Addrs) > 2 || r.ENI != "" && (!values.IsID(r.ENI, "eni") || r.Subnet != "") {
				t.Errorf("%q: %+v", text, r)
			}
		}
	})
}
