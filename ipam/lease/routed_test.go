// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestRoutedResult: the form of the result shows that a routed pod has no link on the ENI.
func TestRoutedResult(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	eni := registry.ENI{CIDR: prefix("10.0.1.0/24"), CIDR6: prefix("2600:1f18:0:1::/64"), VPC: "vpc-1",
		Addrs: []netip.Addr{addr("10.0.1.4"), addr("10.0.1.10")}}
	vpc := registry.VPC{CIDRs: []netip.Prefix{prefix("10.0.0.0/16")},
		CIDRs6: []netip.Prefix{prefix("2600:1f18::/56")}}
	only6 := eni
	only6.Addrs = []netip.Addr{addr("2600:1f18:0:1::10")}
	const four = `{"address":"10.0.1.10/32","gateway":"10.0.1.1","interface":1}`
	const six = `{"address":"2600:1f18:0:1::10/128","gateway":"fe80:ec2::1","interface":1}`
	const primary = `{"address":"10.0.1.4/24","interface":0}`
	const routes6 = `{"dst":"2600:1f18::/56","gw":"fe80:ec2::1"},{"dst":"::/0","gw":"fe80:ec2::1"}`
	for name, c := range map[string]struct {
		addrs       []netip.Addr
		eni         registry.ENI
		ips, routes string
	}{
		"IPv4": {[]netip.Addr{addr("10.0.1.10")}, eni, four + "," + primary, `{"dst":"10.0.0.0/16","gw":"10.0.1.1"}`},
		"dual stack": {[]netip.Addr{addr("10.0.1.10"), addr("2600:1f18:0:1::10")}, eni,
			four + "," + six + "," + primary,
			`{"dst":"10.0.0.0/16","gw":"10.0.1.1"},` + routes6},
		"IPv6 alone":                   {[]netip.Addr{addr("2600:1f18:0:1::10")}, eni, six + "," + primary, routes6},
		"an ENI without a primary one": {[]netip.Addr{addr("2600:1f18:0:1::10")}, only6, six, routes6},
	} {
		a := Allocation{Addrs: c.addrs, ID: "eni-1", ENI: c.eni, VPC: vpc}
		res := a.Routed("ens6", Policy{Routed: true}, "eth0", "/run/netns/cni-1")
		got, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		want := `{"dns":{"nameservers":["10.0.0.2"]},"interfaces":[{"name":"ens6"},` +
			`{"name":"eth0","sandbox":"/run/netns/cni-1"}],"ips":[` + c.ips + `],"routes":[` + c.routes + `]}`
		if string(got) != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
		if eni, is := plugin.Routed(res, "eth0"); !is || eni != "ens6" {
			t.Errorf("%s: the result is that of a routed pod: %v, of the ENI %q", name, is, eni)
		}
		if _, is := plugin.Routed(a.Result("ens6", Policy{}), "eth0"); is {
			t.Errorf("%s: the result of another pod is taken for that of a routed one", name)
		}
	}
}

// TestDataPath: each pool has its own data path, or else that of the top-level keys.
func TestDataPath(t *testing.T) {
	const base = `{"secGroupIds": ["sg-1"], `
	for config, want := range map[string][2]bool{
		base + `"pools": {"a": {"namespaces": ["a"]}}}`:                                                {false, false},
		base + `"pools": {"a": {"namespaces": ["a"], "dataPath": "veth"}}}`:                            {false, true},
		base + `"dataPath": "veth", "pools": {"a": {"namespaces": ["a"]}}}`:                            {true, true},
		base + `"dataPath": "veth", "pools": {"a": {"namespaces": ["a"], "dataPath": "ipvlan"}}}`:      {true, false},
		base + `"dataPath": "ipvlan", "pools": {"a": {"namespaces": ["a"], "secGroupIds": ["sg-2"]}}}`: {false, false},
	} {
		c, err := parseConfig(t, config)
		if err != nil {
			t.Fatalf("%s: %v", config, err)
		}
		for i, namespace := range []string{"default", "a"} {
			p, err := c.Choose(plugin.Pod{Namespace: namespace, Name: "p"})
			if err != nil || p.Routed != want[i] {
				t.Errorf("%s: pods of %s are routed: %v, want %v; %v", config, namespace, p.Routed, want[i], err)
			}
		}
	}
	for _, config := range []string{base + `"dataPath": "bridge"}`,
		base + `"pools": {"a": {"namespaces": ["a"], "dataPath": "bridge"}}}`} {
		if _, err := parseConfig(t, config); err == nil ||
			!strings.Contains(err.Error(), `dataPath: "bridge": want ipvlan or veth`) {
			t.Errorf("%s: got %v", config, err)
		}
	}
}

// TestRoutedRequests: a routed pod can have only one interface, and cannot ask for a whole ENI. A routed pod can make
// all other requests.
func TestRoutedRequests(t *testing.T) {
	const config = `{"secGroupIds": ["sg-1"], "dataPath": "veth", "pools": {
		"slaves": {"namespaces": ["slaves"], "dataPath": "ipvlan"}}, "requests": [{"namespaces": ["*"],
		"subnets": ["subnet-1"], "securityGroups": ["sg-2"], "ips": true, "exclusive": true, "max": 3}]}`
	for _, c := range []struct{ namespace, asked, refused string }{
		{"default", "", ""},
		{"default", `[{}]`, ""},
		{"default", `[{"subnet": "subnet-1"}]`, ""},
		{"default", `[{"ip": "10.0.1.9"}]`, ""},
		{"default", `[{"securityGroups": ["sg-2"]}]`, ""},
		{"default", `[{}, {}]`, "pod default/p asks for 2 interfaces, and pods of the pool default have only one " +
			"veth pair, because its dataPath is \"veth\""},
		{"default", `[{}, {"subnet": "subnet-1"}, {}]`, "asks for 3 interfaces"},
		{"default", `[{"exclusive": true}]`, "asks for a whole ENI"},
		{"default", `[{}, {"exclusive": true}]`, "asks for a whole ENI"},
		{"slaves", `[{}, {"exclusive": true}]`, ""},
	} {
		conf, err := parseConfig(t, config)
		if err != nil {
			t.Fatal(err)
		}
		if c.asked != "" {
			conf.RuntimeConfig.Annotations = map[string]string{nic.Annotation: c.asked}
		}
		all, err := conf.Interfaces("net", "eth0", plugin.Pod{Namespace: c.namespace, Name: "p"})
		if c.refused == "" {
			if err != nil || len(all) == 0 || all[0].Routed != (c.namespace == "default") {
				t.Errorf("%s in %s: %v", c.asked, c.namespace, err)
			}
			continue
		}
		e, ok := errors.AsType[*plugin.Error](err)
		if !ok || e.Code != plugin.CodeRefused || !strings.Contains(err.Error(), c.refused) ||
			!strings.Contains(e.Hint, `dataPath "ipvlan"`) {
			t.Errorf("%s: got %v, want %q", c.asked, err, c.refused)
		}
	}
}

// TestRoutedRecall: the result that Recall returns has the form for a routed pod exactly if dataPath is "veth".
func TestRoutedRecall(t *testing.T) {
	own := netip.MustParseAddr("10.0.1.10")
	s := &registry.State{ENIs: map[string]registry.ENI{"eni-1": {Link: "ens6",
		CIDR: netip.MustParsePrefix("10.0.1.0/24"), Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.4"), own}}}}
	l := registry.Lease{Key: registry.Key{Network: "net", Attachment: registry.Attachment{ContainerID: "c1",
		IfName: "eth0"}}, NetNS: "/run/netns/cni-1", PodNamespace: "default", PodName: "p", ENI: "eni-1"}
	for path, want := range map[string]bool{"veth": true, "ipvlan": false, "": false} {
		c, err := parseConfig(t, `{"secGroupIds": ["sg-1"], "dataPath": "`+path+`"}`)
		if err != nil {
			t.Fatal(err)
		}
		res, err := Recall(s, l, []netip.Addr{own}, &c, func(configured bool) bool { return configured })
		if err != nil {
			t.Fatal(err)
		}
		nics := plugin.NICs(res, "eth0")
		if eni, is := plugin.Routed(res, "eth0"); is != want || is && eni != "ens6" {
			t.Errorf("dataPath %q: routed %v, by %q", path, is, eni)
		}
		if len(nics) != 1 || len(nics[0].Addrs()) != 1 || nics[0].Addrs()[0] != own {
			t.Errorf("dataPath %q: the pod has %+v", path, nics)
		}
	}
}
