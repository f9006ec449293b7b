// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"encoding/json"
	"flag"
	"net"
	"os"
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

// request returns the request of an ADD. Its prevResult has these addresses, each with its gateway, and these routes.
func request(t *testing.T, config string, addrs, routes [][2]string) *plugin.Request[Config] {
	t.Helper()
	r := &plugin.Request[Config]{
		Network:    "net",
		Attachment: plugin.Attachment{ContainerID: "4f1c", IfName: "eth0"},
		NetNS:      "/run/netns/cni-1",
		Prev: &types100.Result{
			Interfaces: []*types100.Interface{{Name: "ens6"}},
			DNS:        types.DNS{Nameservers: []string{"10.0.0.2"}},
		},
	}
	if err := json.Unmarshal([]byte(config), &r.Config); err != nil {
		t.Fatal(err)
	}
	if err := r.Config.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		r.Prev.IPs = append(r.Prev.IPs, &types100.IPConfig{Interface: new(0), Address: cidr(a[0]),
			Gateway: net.ParseIP(a[1])})
	}
	for _, p := range routes {
		r.Prev.Routes = append(r.Prev.Routes, &types.Route{Dst: cidr(p[0]), GW: net.ParseIP(p[1])})
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

// TestWiring prints all changes of an ADD.
func TestWiring(t *testing.T) {
	v4 := [][2]string{{"10.0.1.20/24", "10.0.1.1"}}
	dual := append(v4, [2]string{"2600:1f18:0:1::20/64", "fe80::1"})
	vpc := [][2]string{{"10.0.0.0/16", "10.0.1.1"}, {"100.64.0.0/16", "10.0.1.1"}}
	for _, c := range []struct {
		name, config  string
		addrs, routes [][2]string
	}{
		{"l2", `{}`, v4, vpc},
		{"l3s", `{"mode": "l3s", "mtu": 1500}`, v4, vpc},
		{"routes", `{}`, v4, append(vpc, [][2]string{
			{"10.0.0.0/16", "10.0.1.1"},    // twice
			{"10.0.1.0/24", "10.0.1.1"},    // the subnet of the address
			{"192.168.0.7/24", ""},         // the gateway of the address; bits after the prefix
			{"10.8.0.0/16", "169.254.1.1"}, // a gateway outside of the subnet
		}...)},
		{"dual-stack", `{}`, dual, append(vpc, [2]string{"2600:1f18::/56", "fe80::1"})},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request(t, c.config, c.addrs, c.routes)
			node, pod := &nl.NS{Name: "node"}, &nl.NS{Name: "pod"}
			first := slave{link: nl.IPVlan{Name: r.IfName, Master: "ens6", NS: pod, Mode: r.Config.Mode,
				MTU: r.Config.MTU}, ips: r.Prev.IPs}
			nltest.Golden(t, c.name, wiring([]slave{first}, r.Prev, node, pod).String(), *update)
		})
	}
}

// TestWiringSeveral prints the changes of an ADD with two NICs, and of the ADD of a further attachment.
func TestWiringSeveral(t *testing.T) {
	nltest.Golden(t, "two", shipped(t, false).String(), *update)
	nltest.Golden(t, "further", shipped(t, true).String(), *update)
}

// shipped returns the wiring of a pod with two NICs in both families. If further is true, it returns the wiring of a
// further attachment that has only the second NIC.
func shipped(t *testing.T, further bool) nl.Wiring {
	node, pod := &nl.NS{Name: "node"}, &nl.NS{Name: "pod"}
	r := request(t, `{}`, nil, nil)
	r.Prev = answer(eniAt{0, 1}, eniAt{1, 3})
	own := nl.PodGroup(r.Digest())
	slaves := []slave{
		{nl.IPVlan{Name: "eth0", Master: "ens6", NS: pod, Group: own}, r.Prev.IPs[:2], 0, true, ""},
		{nl.IPVlan{Name: "eth2", Master: "ens7", NS: pod, Group: own}, r.Prev.IPs[2:],
			nl.FurtherTable(own, 1), true, ""},
	}
	if further {
		r.IfName = "net1"
		own = nl.PodGroup(r.Digest())
		slaves = []slave{{nl.IPVlan{Name: "net1", Master: "ens7", NS: pod, Group: nl.FurtherGroup(own)}, r.Prev.IPs[2:],
			nl.FurtherTable(own, 0), true, ""}}
	}
	return wiring(slaves, r.Prev, node, pod)
}

func TestResult(t *testing.T) {
	for name, config := range map[string]string{"result": `{}`,
		"result-dns": `{"dns": {"nameservers": ["192.0.2.53"], "search": ["example.com"]}}`} {
		r := request(t, config, [][2]string{{"10.0.1.20/24", "10.0.1.1"}}, [][2]string{{"10.0.0.0/16", "10.0.1.1"}})
		r.Prev.IPs[0].Interface = nil
		b, err := json.MarshalIndent(result(r, []slave{{ips: r.Prev.IPs}},
			[]nl.Link{{Name: "eth0", MAC: "0a:00:00:00:00:02", MTU: 9001}}), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		nltest.Golden(t, name, string(b)+"\n", *update)
		if r.Prev.IPs[0].Interface != nil {
			t.Error("prevResult was changed")
		}
	}
}

// TestValidate: Validate reports all mistakes at once, each with its key.
func TestValidate(t *testing.T) {
	c := Config{Mode: "bridge", Master: "eth 1", ContainerInterface: "a/b", MTU: 20, LinkInContainer: true}
	c.IPAM.Type = "host-local"
	const want = `mode: "bridge": want l2, l3 or l3s
master: "eth 1": the name contains / or : or whitespace characters: want 1 to 15 bytes without white space, / and :
containerInterface: "a/b": the name contains / or : or whitespace characters: want 1 to 15 bytes of printable ASCII without /, : and %
mtu: 20: want 68 to 65535 bytes, or 0 for the MTU of the master
ipam: "host-local": this plugin calls no other plugin; put cni-ipvlan-vpc-k8s-ipam before this plugin in the chain, or use the reference plugin (type ipvlan), which calls an ipam plugin
linkInContainer: true: want false, because the master is the link of an ENI, and is on the node`
	if err := c.Validate(); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestMastersOf(t *testing.T) {
	for _, c := range []struct {
		want   string // the master, or the error
		change func(*plugin.Request[Config])
	}{
		{"ens6", func(*plugin.Request[Config]) {}},
		{"eth7", func(r *plugin.Request[Config]) { r.Config.Master = "eth7" }},
		{"this plugin must be chained after another: there is no " +
			"prevResult", func(r *plugin.Request[Config]) { r.Prev = nil }},
		{"prevResult has no addresses", func(r *plugin.Request[Config]) { r.Prev.IPs = nil }},
		{"chained master failure. PrevResult lacks a single named interface",
			func(r *plugin.Request[Config]) { r.Prev.Interfaces = nil }},
		{"chained master failure: interfaces[1] of prevResult is not a link of the node with a name and addresses",
			func(r *plugin.Request[Config]) {
				r.Prev.Interfaces = append(r.Prev.Interfaces, r.Prev.Interfaces[0])
			}},
		{"chained master failure: interfaces[1] of prevResult is not a link of the node with a name and addresses",
			func(r *plugin.Request[Config]) {
				r.Prev.Interfaces = append(r.Prev.Interfaces, &types100.Interface{Name: "eth0", Sandbox: r.NetNS})
				r.Prev.IPs[0].Interface = new(1)
			}},
		{"chained master failure: an address of prevResult is for interfaces[3], but prevResult has only 1",
			func(r *plugin.Request[Config]) { r.Prev.IPs[0].Interface = new(3) }},
		{`master: "eth7": prevResult has addresses of 2 interfaces`, func(r *plugin.Request[Config]) {
			r.Config.Master, r.Prev.IPs[0].Interface = "eth7", new(1)
		}},
		{"ens6 06:00:00:00:00:07", func(r *plugin.Request[Config]) {
			r.Prev.Interfaces[0].Mac = "06:00:00:00:00:07"
			r.Config.Args.CNI = []byte(`{"exclusive": true}`)
		}},
		{"interface 1: prevResult and the request of the pod disagree whether the pod gets the whole ENI (link ens6)",
			func(r *plugin.Request[Config]) {
				r.Prev.Interfaces[0].Mac = "06:00:00:00:00:07"
			}},
		{"interface 1: prevResult and the request of the pod disagree whether the pod gets the whole ENI (link ens6)",
			func(r *plugin.Request[Config]) {
				r.Config.Args.CNI = []byte(`{"exclusive": true}`)
			}},
		{"ens6 ens7", func(r *plugin.Request[Config]) {
			r.Prev.Interfaces = append(r.Prev.Interfaces, &types100.Interface{Name: "ens7"})
			r.Prev.IPs = append(r.Prev.IPs, &types100.IPConfig{Interface: new(1)})
		}},
	} {
		r := request(t, `{}`, [][2]string{{"10.0.1.20/24", "10.0.1.1"}}, nil)
		c.change(r)
		asked, err := r.Config.Requests(r.IfName)
		if err != nil {
			t.Fatal(err)
		}
		masters, err := mastersOf(r, asked)
		var names []string
		for _, m := range masters {
			names = append(names, strings.TrimSpace(m.name+" "+m.mac))
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
