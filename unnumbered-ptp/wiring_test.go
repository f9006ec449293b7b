// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"encoding/json"
	"flag"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

var update = flag.Bool("update", false, "write testdata")

func TestMain(m *testing.M) { os.Exit(nltest.Guard{M: m}.Run()) }

// newScene returns a scene with the data that an ADD has before it reads anything from the kernel.
func newScene(r *plugin.Request[Config]) *scene {
	return &scene{request: newRequest(&nl.NS{Name: "node"}, r), podNS: &nl.NS{Name: "pod"}, podMTU: 9001}
}

// asked returns the request of an ADD, with a configuration in JSON. Its prevResult has these addresses, and routes to
// these destinations.
func asked(t *testing.T, config string, addrs, dsts []string) *plugin.Request[Config] {
	t.Helper()
	r := &plugin.Request[Config]{
		Network:    "cni-ipvlan-vpc-k8s",
		Attachment: plugin.Attachment{ContainerID: "4f1c", IfName: "eth0"},
		NetNS:      "/run/netns/cni-1",
		Pod:        plugin.Pod{Namespace: "default", Name: "web-0"},
		Prev: &types100.Result{Interfaces: []*types100.Interface{{Name: "eth0", Mac: "0a:00:00:00:00:02",
			Sandbox: "/run/netns/cni-1"}}},
	}
	if err := json.Unmarshal([]byte(config), &r.Config); err != nil {
		t.Fatal(err)
	}
	if err := r.Config.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		r.Prev.IPs = append(r.Prev.IPs, &types100.IPConfig{Interface: new(0), Address: cidr(a),
			Gateway: map[bool]net.IP{true: net.ParseIP("fe80:ec2::1"),
				false: net.IPv4(10, 0, 1, 1)}[strings.Contains(a, ":")]})
	}
	for _, d := range dsts {
		r.Prev.Routes = append(r.Prev.Routes, &types.Route{Dst: cidr(d)})
	}
	return r
}

func cidr(s string) net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return net.IPNet{IP: ip, Mask: n.Mask}
}

// TestWiring prints all changes of an ADD: first those for all pods, then those for its own pod.
func TestWiring(t *testing.T) {
	const keys = `"hostInterface": "ens5", "containerInterface": "eth1"`
	vpc := []string{"10.0.0.0/16", "100.64.0.0/16", "10.0.0.0/16"}
	v4 := node{mtu: 9001, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.10"), netip.MustParseAddr("10.0.0.11")}}
	dual := node{mtu: 9001, addrs: append(v4.addrs[:1:1], netip.MustParseAddr("2600:1f18::10")), acceptRA: true,
		limitsRefusals: true}
	for _, c := range []struct {
		name, config string
		node         node
		addrs, dsts  []string
	}{
		{"redirect", `{` + keys + `, "ipMasq": true}`, v4, []string{"10.0.1.20/24"}, vpc},
		{"masquerade", `{` + keys + `, "ipMasq": true, "serviceLoop": "masquerade"}`, v4,
			[]string{"10.0.1.20/24"}, vpc},
		{"keep-caller", `{` + keys + `, "ipMasq": true, "keepCaller": true}`, dual,
			[]string{"10.0.1.20/24", "2600:1f18:0:1::20/64"}, append(vpc, "2600:1f18::/56")},
		{"keep-caller-masquerade", `{` + keys + `, "ipMasq": true, "keepCaller": true, "serviceLoop": "masquerade"}`,
			v4, []string{"10.0.1.20/24"}, vpc},
		{"no-loop", `{` + keys + `, "ipMasq": true, "serviceLoop": "none"}`, dual,
			[]string{"10.0.1.20/24", "2600:1f18:0:1::20/64"}, append(vpc, "2600:1f18::/56")},
		{"plain", `{` + keys + `, "mtu": 1500}`, v4, []string{"10.0.1.20/24"}, vpc},
		{"no-nodeports", `{` + keys + `, "ipMasq": true, "nodePorts": "", "routeTableStart": 1000}`, v4,
			[]string{"10.0.1.20/24"}, vpc},
		{"dotted", `{"hostInterface": "bond0.100", "containerInterface": "eth.1", "ipMasq": true, "nodePorts": "80", ` +
			`"nodePortMark": 1}`, v4, []string{"10.0.1.20/24"}, vpc},
		{"default-by-eni", `{` + keys + `, "ipMasq": true}`, v4, []string{"10.0.1.20/24"}, []string{"0.0.0.0/0"}},
		{"small-eni", `{` + keys + `, "ipMasq": true, "mtu": 9001}`, v4, []string{"10.0.1.20/24"}, vpc},
		{"dual-stack", `{` + keys + `, "ipMasq": true}`, dual, []string{"10.0.1.20/24", "2600:1f18:0:1::20/64"},
			append(vpc, "2600:1f18::/56")},
		{"ipv6", `{` + keys + `, "ipMasq": true}`, dual, []string{"2600:1f18:0:1::20/64"}, []string{"2600:1f18::/56"}},
		{"vpc", `{` + keys +
			`, "ipMasq": true, "defaultRoute": "vpc", "hostCidrs": ["172.20.0.0/16", "169.254.20.10", "fd77::/108"]}`,
			v4, []string{"10.0.1.20/24"}, vpc},
		{"dual-vpc", `{` + keys +
			`, "ipMasq": true, "defaultRoute": "vpc", "hostCidrs": ["172.20.0.0/16", "fd77::/108"]}`, dual,
			[]string{"10.0.1.20/24", "2600:1f18:0:1::20/64"}, append(vpc, "::/0")},
		{"dual-host", `{` + keys + `, "ipMasq": true, "hostCidrs": ["10.0.0.10", "169.254.20.10", "fd77::/108"]}`, dual,
			[]string{"10.0.1.20/24", "2600:1f18:0:1::20/64"}, append(vpc, "2600:1f18::/56", "::/0")},
		{"no-metadata", `{` + keys + `, "ipMasq": true, "blockInstanceMetadata": true}`, v4,
			[]string{"10.0.1.20/24"}, vpc},
		{"bandwidth", `{` + keys +
			`, "ipMasq": true, "runtimeConfig": {"bandwidth": {"IngressRate": 80000000, "IngressBurst": 4294967295, ` +
			`"egressRate": 8000000, "egressBurst": 16000000}}}`, v4, []string{"10.0.1.20/24"}, vpc},
		{"metadata", `{` + keys + `, "ipMasq": true, "serviceLoop": "masquerade", "blockInstanceMetadata": false}`,
			dual, []string{"2600:1f18:0:1::20/64"}, []string{"::/0"}},
		{"ipv4-on-dual", `{` + keys + `, "ipMasq": true}`, dual, []string{"10.0.1.20/24"},
			append(vpc, "2600:1f18::/56")},
		{"routed", `{` + keys + `, "ipMasq": true}`, v4, []string{"10.0.1.20/32"}, vpc},
		{"routed-plain", `{` + keys + `, "mtu": 1500}`, v4, []string{"10.0.1.20/32"}, vpc},
		{"routed-dual", `{` + keys + `, "ipMasq": true, "hostCidrs": ["10.0.0.10", "172.20.0.0/16", "fd77::/108"]}`,
			dual, []string{"10.0.1.20/32", "2600:1f18:0:1::20/128"}, append(vpc, "2600:1f18::/56")},
		{"routed-peer", `{` + keys + `, "ipMasq": true, "hostCidrs": ["100.64.0.0/16"]}`, v4,
			[]string{"10.0.1.20/32"}, vpc},
		{"routed-vpc", `{` + keys +
			`, "ipMasq": true, "defaultRoute": "vpc", "hostCidrs": ["172.20.0.0/16", "169.254.20.10", "fd77::/108"]}`,
			dual, []string{"10.0.1.20/32", "2600:1f18:0:1::20/128"}, append(vpc, "::/0")},
		{"routed-no-metadata", `{` + keys + `, "ipMasq": true, "blockInstanceMetadata": true}`, v4,
			[]string{"10.0.1.20/32"}, vpc},
		{"routed-bandwidth", `{` + keys +
			`, "ipMasq": true, "runtimeConfig": {"bandwidth": {"ingressRate": 80000000, "egressRate": 8000000}}}`, v4,
			[]string{"10.0.1.20/32"}, vpc},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := asked(t, c.config, c.addrs, c.dsts)
			routed := strings.HasPrefix(c.name, "routed")
			if routed {
				route(r.Prev)
			}
			s := newScene(r)
			if s.node = c.node; routed {
				s.eni = nl.Link{Name: "ens6", Index: 7, MTU: 9001}
			}
			if c.name == "small-eni" {
				s.podMTU = 1500
			}
			p := newPair(s)
			p.loop = r.Config.loopsOfNewPod()[0]
			w := nl.Wiring{{NS: s.nodeNS, Object: p.veth}}
			if !routed {
				w = append(nodeWiring(s.request, s.node), w...)
			}
			w = append(w, s.wiring(p, s.node, tableOfIndex(r.Config.start, 7))...)
			nltest.Golden(t, c.name, w.String(), *update)
		})
	}
}

// route changes a result into the form that a routed pod's ADD gets.
func route(res *types100.Result) {
	res.Interfaces = []*types100.Interface{{Name: "ens6"}, {Name: "eth0", Sandbox: "/run/netns/cni-1"}}
	for _, c := range res.IPs {
		c.Interface = new(1)
	}
	res.IPs = append(res.IPs, &types100.IPConfig{Interface: new(0), Address: cidr("10.0.1.10/24")})
}

// TestRoutedResult: the final result of a routed pod names only the pod's own addresses. CHECK and DEL find the ENI in
// it.
func TestRoutedResult(t *testing.T) {
	r := asked(t, `{"hostInterface": "ens5", "containerInterface": "eth1"}`,
		[]string{"10.0.1.20/32", "2600:1f18:0:1::20/128"}, []string{"10.0.0.0/16"})
	r.Prev.DNS.Nameservers = []string{"10.0.0.2"}
	route(r.Prev)
	s := newScene(r)
	s.eni = nl.Link{Name: "ens6", Index: 7, MTU: 9001}
	res := result(s.request, newPair(s))
	b, err := json.MarshalIndent(res, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	nltest.Golden(t, "routed-result", string(b)+"\n", *update)
	if len(r.Prev.Interfaces) != 2 || len(r.Prev.IPs) != 3 {
		t.Error("prevResult was changed")
	}
	again := newRequest(s.nodeNS, &plugin.Request[Config]{Attachment: r.Attachment, Prev: res})
	if again.eni != "ens6" || !slices.Equal(again.addrs, s.addrs) || !slices.Equal(again.gateways, s.gateways) {
		t.Errorf("by the result, the ENI is %q, the addresses are %v by %v", again.eni, again.addrs, again.gateways)
	}
}

func TestResult(t *testing.T) {
	r := asked(t, `{"hostInterface": "ens5", "containerInterface": "eth1"}`, []string{"10.0.1.20/24"},
		[]string{"10.0.0.0/16"})
	r.Prev.DNS.Nameservers = []string{"10.0.0.2"}
	s := newScene(r)
	s.node.mtu = 9001
	b, err := json.MarshalIndent(result(s.request, newPair(s)), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	nltest.Golden(t, "result", string(b)+"\n", *update)
	if len(r.Prev.Interfaces) != 1 {
		t.Error("prevResult was changed")
	}
}

// TestTable: each link index has its own routing table number, and none is a table that the kernel predefines.
func TestTable(t *testing.T) {
	for _, start := range []uint32{1, 100, 252, 253, 254, 255, 256, maxTable} {
		seen := map[uint32]int{}
		for i := 1; i < 600; i++ {
			n := tableOfIndex(start, i)
			if n < start || n >= 253 && n <= 255 {
				t.Errorf("table(%d, %d) = %d", start, i, n)
			}
			if j, ok := seen[n]; ok {
				t.Errorf("table(%d, %d) = table(%d, %d) = %d", start, i, start, j, n)
			}
			seen[n] = i
		}
	}
}

func TestNames(t *testing.T) {
	r := asked(t, `{"hostInterface": "ens5", "containerInterface": "eth1"}`, nil, nil)
	seen := map[string]bool{}
	for _, network := range []string{"a", "b"} {
		for _, id := range []string{"1", "2", strings.Repeat("f", 64)} {
			for _, ifname := range []string{"eth0", "net1"} {
				a := plugin.Attachment{ContainerID: id, IfName: ifname}
				name := VethName(network, a)
				near, far := macs(network, a)
				for _, s := range []string{name, near, far} {
					if seen[s] {
						t.Errorf("%s serves two", s)
					}
					seen[s] = true
				}
				if len(name) != 15 || !strings.HasPrefix(name, "veth") || name != VethName(network, a) {
					t.Errorf("name %q", name)
				}
				for _, mac := range []string{near, far} {
					if hw, err := net.ParseMAC(mac); err != nil || hw[0]&3 != 2 {
						t.Errorf("%s is not a locally administered address of one station", mac)
					}
				}
			}
		}
	}
	if got, want := alias(
		newScene(r).request), "cni-ipvlan-vpc-k8s cni-ipvlan-vpc-k8s 4f1c eth0 default/web-0"; got != want {
		t.Errorf("alias %q, want %q", got, want)
	}
	r.Pod.Name = strings.Repeat("x", 253)
	if got := alias(newScene(r).request); len(got) != 255 || networkInAlias(got) != r.Network {
		t.Errorf("%d bytes, network %q", len(got), networkInAlias(got))
	}
	for _, foreign := range []string{"", "uplink", "a link of others"} {
		if networkInAlias(foreign) != "" {
			t.Errorf("took %q for ours", foreign)
		}
	}
}

// TestValidate: Validate reports all mistakes at once, each with its key.
func TestValidate(t *testing.T) {
	for config, want := range map[string]string{
		`{}`: "hostInterface must be specified: want the name of the boot ENI's link, for example eth0 or ens5\n" +
			"containerInterface must be specified: want the name of the pod's end of the veth pair, for example eth1",
		`{"hostInterface": "ens5", "containerInterface": "eth1", "mtu": -1, "routeTableStart": 0, "nodePortMark": 0, "nodePorts": "9:8", "serviceLoop": "ports"}`: "mtu: -1: want 68 to 65535 bytes, or 0 for the MTU of hostInterface\n" +
			"routeTableStart: 0: want 1 to 1073741824\n" +
			"nodePortMark: 0: want at least one bit, which marks a connection, for example 8192 (0x2000)\n" +
			"nodePorts: \"9:8\": want a range such as \"30000:32767\", or \"\" for no NodePorts\n" +
			"serviceLoop: \"ports\": want redirect, masquerade or none",
		`{"hostInterface": "ens5", "containerInterface": "eth1", "defaultRoute": "eni", "hostCidrs": ["10.0.0.0", "10.0.0.0/33", "0.0.0.0/0", "dns"]}`: "defaultRoute: \"eni\": want host or vpc\n" +
			"hostCidrs: \"10.0.0.0/33\": want a CIDR or an address, for example 10.8.0.0/16 or 10.8.0.5\n" +
			"hostCidrs: \"dns\": want a CIDR or an address, for example 10.8.0.0/16 or 10.8.0.5\n" +
			"hostCidrs: \"0.0.0.0/0\": use the key \"defaultRoute\" for the default route",
		`{"hostInterface": "sixteen-bytes-up", "containerInterface": "a/b"}`: "hostInterface: \"sixteen-bytes-up\": " +
			"the name is too long: want 1 to 15 bytes without white space, / and :\n" +
			"containerInterface: \"a/b\": the name contains / or : or whitespace characters: want 1 to 15 bytes of " +
			"printable ASCII without /, : and %",
		`{"hostInterface": "..", "containerInterface": "lo"}`: "hostInterface: \"..\": the name is . or ..: want 1 " +
			"to 15 bytes without white space, / and :\n" +
			"containerInterface: \"lo\": the name is one that the kernel uses itself: want 1 to 15 bytes of " +
			"printable ASCII without /, : and %",
		`{"hostInterface": "ens5", "containerInterface": "eth1", "nodePorts": "", "keepCaller": true}`:       `keepCaller: true: want a range of NodePorts in nodePorts, which is ""`,
		`{"hostInterface": "ens5", "containerInterface": "eth1", "serviceLoop": "none", "keepCaller": true}`: `keepCaller: true: want another serviceLoop than "none". With "none", pods see the node instead of the caller`,
		`{"hostInterface": "ens5", "containerInterface": "eth1", "defaultRoute": "vpc"}`:                     "hostCidrs must be specified if defaultRoute is \"vpc\": want the CIDRs of the cluster's Services, for example \"172.20.0.0/16\". Without hostCidrs, calls to Services leave by the ENI and get no answer",
	} {
		var c Config
		if err := json.Unmarshal([]byte(config), &c); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", config, err, want)
		}
	}
	for text, want := range map[string]ports{"30000:32767": {30000, 32767}, "30000-32767": {30000, 32767},
		"80": {80, 80}, "": {}} {
		if got, err := parsePorts(text); got != want || err != nil {
			t.Errorf("parsePorts(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"a", "1:", ":1", "0:1", "1:65536", "1:2:3", "-1", " 1"} {
		if got, err := parsePorts(text); err == nil {
			t.Errorf("parsePorts(%q) = %v", text, got)
		}
	}
}
