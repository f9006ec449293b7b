// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"flag"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

var update = flag.Bool("update", false, "write the documentation")

// aPod returns a pod with addresses of both families.
func aPod(routes []netip.Prefix) *pod {
	return &pod{
		ns: &nl.NS{Name: "pod"}, nic: plugin.NIC{Name: "eth0"}, links: []string{"eth0", "eth1"}, mtu: 9001,
		group: 1223525448, port: DefaultPort,
		addrs: []netip.Addr{netip.MustParseAddr("100.64.0.5"), netip.MustParseAddr("2600:1f18:0:1::5")},
		hops:  []netip.Addr{netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("fe80:ec2::1")},
		vpc:   prefixes("10.0.0.0/16", "100.64.0.0/16", "2600:1f18::/56"), routes: routes,
	}
}

// tunnelled reports whether a client's routes send packets for an address into the tunnel.
func tunnelled(t *testing.T, e Egress, a netip.Addr, own []netip.Prefix) bool {
	t.Helper()
	w, err := aPod(own).clientWiring([]Egress{e})
	if err != nil {
		t.Fatal(err)
	}
	var best nl.Route
	for _, s := range w {
		if r, is := s.Object.(nl.Route); is && r.Dst.Contains(a) &&
			(!best.Dst.IsValid() || r.Dst.Bits() > best.Dst.Bits() || r.Dst == best.Dst && r.Metric < best.Metric) {
			best = r
		}
	}
	return best.Dev != ""
}

// TestClientRefusesNode: packets to the node, or to a gateway of another egress, never take the tunnel, so such a
// destination is an error.
func TestClientRefusesNode(t *testing.T) {
	e := config(t,
		egresses(`"e": {"gateways": ["172.20.0.77"], "destinations": ["10.0.9.10"], "namespaces": ["x"]}`)).Egresses["e"]
	if _, err := aPod(prefixes("10.0.9.10/32")).clientWiring([]Egress{e}); err == nil ||
		!strings.Contains(err.Error(), "destinations: 10.0.9.10/32: no packet to this destination would") {
		t.Errorf("got %v", err)
	}
	e.destinations = prefixes("172.20.0.78/32")
	other := config(t,
		egresses(`"o": {"gateways": ["172.20.0.78"], "destinations": ["203.0.113.0/24"], "selectable": ["*"]}`)).Egresses["o"]
	if _, err := aPod(nil).clientWiring([]Egress{e, other}); err == nil ||
		!strings.Contains(err.Error(), "172.20.0.78/32: no packet to this destination would take the tunnel. This "+
			"destination is an address of the node, a gateway") {
		t.Errorf("a gateway as a destination: got %v", err)
	}
}

// TestRouterWithoutWayOut: a router whose prevResult names no gateway gets an error.
func TestRouterWithoutWayOut(t *testing.T) {
	e := config(t,
		egresses(`"e": {"gateways": ["172.20.0.77"], "destinations": ["0.0.0.0/0"], "namespaces": ["x"]}`)).Egresses["e"]
	p := aPod(nil)
	p.hops = nil
	if _, err := p.routerWiring(e); err == nil || !strings.Contains(err.Error(), "names no gateway for 100.64.0.5") {
		t.Errorf("got %v", err)
	}
}

// TestRouterTakesClients: a router accepts packets from its VPC, and from the clients that the configuration names.
// These clients may be in another VPC.
func TestRouterTakesClients(t *testing.T) {
	e := config(t,
		egresses(`"e": {"gateways": ["172.20.0.77"], "destinations": ["0.0.0.0/0"], "namespaces": ["x"], "clients": `+
			`["100.64.0.0/16", "10.64.0.0/16"]}`)).Egresses["e"]
	w, err := aPod(nil).routerWiring(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"udp dport 5555 ip saddr != { 10.64.0.0/16, 100.64.0.0/16 } counter drop",
		`iifname "egress*" ip saddr { 10.64.0.0/16, 100.64.0.0/16 } counter ct mark set ct mark | 0x40000000 accept`,
	} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("want %s in\n%s", want, w)
		}
	}
}

// TestClientKnowsRouters: with routerCidrs, a client accepts packets of the tunnel only from these CIDRs. If one of the
// client's egresses has no routerCidrs, the client accepts packets from any router.
func TestClientKnowsRouters(t *testing.T) {
	c := config(t,
		egresses(`"a": {"gateways": ["172.20.0.77"], "destinations": ["203.0.113.0/24"], "namespaces": ["x"], `+
			`"routerCidrs": ["10.0.7.0/24"]}`,
			`"b": {"gateways": ["172.20.0.78"], "destinations": ["198.51.100.0/24"], "namespaces": ["x"]}`))
	for _, tt := range []struct {
		of   []Egress
		want bool
	}{{[]Egress{c.Egresses["a"]}, true}, {[]Egress{c.Egresses["a"], c.Egresses["b"]}, false}} {
		w, err := aPod(nil).clientWiring(tt.of)
		if err != nil || strings.Contains(w.String(),
			"udp dport 5555 ip saddr != 10.0.7.0/24 counter drop") != tt.want {
			t.Errorf("%v, want the rule: %v\n%s", err, tt.want, w)
		}
	}
}

// TestRouterForwards: a router forwards only to destinations that its clients send into the tunnel.
func TestRouterForwards(t *testing.T) {
	for _, tt := range []struct{ egress, yes, no string }{
		{`"destinations": ["203.0.113.0/24"]`, "203.0.113.1",
			"203.0.114.1 10.0.0.1 172.20.0.10 169.254.169.254 100.64.0.9 3fff::1"},
		{`"destinations": ["0.0.0.0/0", "::/0"], "except": ["2600:1f18::/56", "198.51.100.0/24"]`,
			"203.0.113.1 3fff::1",
			"198.51.100.9 10.9.9.9 172.20.0.10 169.254.169.254 169.254.170.23 127.0.0.1 224.0.0.1 fd00:ec2::254 " +
				"fe80::1 2600:1f18::1 fd00:20::10"},
		{`"destinations": ["0.0.0.0/0", "10.0.0.0/8", "10.0.9.0/24"], "except": ["10.0.9.9"]`,
			"8.8.8.8 10.9.9.9 10.0.9.8", "10.0.9.9 10.0.0.5 172.20.0.77 169.254.169.254"},
		{`"destinations": ["100.64.0.0/16"]`, "100.64.0.9", "100.65.0.1 10.0.0.1"},
		{`"destinations": ["168.0.0.0/6", "fc00::/7"], "except": ["fd00:20::/108"]`, "169.253.0.1 fd00:1::1",
			"169.254.169.254 fd00:ec2::254 fd00:20::10"},
	} {
		e := config(t, egresses(`"e": {"gateways": ["172.20.0.77", "fd00:20::77"], "namespaces": ["x"], `+tt.egress+
			`}`)).Egresses["e"]
		for want, texts := range map[bool]string{true: tt.yes, false: tt.no} {
			for text := range strings.FieldsSeq(texts) {
				a, got := netip.MustParseAddr(text), false
				for _, l := range e.layers(nl.FamilyOf(a), prefixes("10.0.0.0/16", "100.64.0.0/16", "2600:1f18::/56")) {
					if _, in := longestMatch(l.to, a); in {
						got = l.pass
						break
					}
				}
				if got != want {
					t.Errorf("%s: %s: forwards %v, want %v", tt.egress, a, got, want)
				}
			}
		}
	}
}

// TestDocs compares the section of docs/node.md with the wiring of a client and of a router.
func TestDocs(t *testing.T) {
	e := config(t,
		egresses(`"partner": {"gateways": ["172.20.0.77", "fd00:20::77"], "destinations": ["203.0.113.0/24", "::/0"],
		"except": ["2600:1f18::/56"], "clients": ["2600:1f18::/56"], "namespaces": ["payments"]}`)).Egresses["partner"]
	client, err := aPod(prefixes("10.0.0.10/32", "10.0.0.0/16", "100.64.0.0/16", "2600:1f18::10/128")).clientWiring(
		[]Egress{e})
	if err != nil {
		t.Fatal(err)
	}
	router, err := aPod(nil).routerWiring(e)
	if err != nil {
		t.Fatal(err)
	}
	want := "\nA client:\n\n```\n" + client.String() + "```\n\nA router:\n\n```\n" + router.String() + "```\n\n"
	nltest.Section(t, "../../docs/node.md", "go test ./plugin/egress -run TestDocs -update", want, *update)
}

// TestGatewaysAreSpared: packets to the gateway of one egress do not enter the tunnel of another.
func TestGatewaysAreSpared(t *testing.T) {
	c := config(t,
		egresses(`"a": {"gateways": ["172.20.0.77"], "destinations": ["203.0.113.0/24"], "namespaces": ["x"]}`,
			`"b": {"gateways": ["172.20.0.78"], "destinations": ["172.16.0.0/12"], "except": ["172.20.0.78/32"], `+
				`"namespaces": ["x"]}`))
	w, err := aPod(nil).clientWiring([]Egress{c.Egresses["a"], c.Egresses["b"]})
	if err != nil || !strings.Contains(w.String(), "ip route add throw 172.20.0.77/32 table 73") {
		t.Errorf("%v\n%s", err, w)
	}
}

// TestGatewayOfIPv6: routes through the tunnel do not use onlink, which kernels before 7.0 refuse here. Instead, ADD
// adds three kinds of routes in this order. The first route keeps packets to the gateway out of the tunnel, because its
// metric is the smallest. The second route makes the gateway valid, and the other routes use the gateway.
func TestGatewayOfIPv6(t *testing.T) {
	for _, destinations := range []string{"::/0", "fd00:99::/64"} {
		e := config(t, egresses(`"e": {"gateways": ["fd00:20::77"], "destinations": ["`+destinations+
			`"], "except": ["2600:1f18::/56"], "namespaces": ["x"]}`)).Egresses["e"]
		w, err := aPod(prefixes("fd00:20::/108")).clientWiring([]Egress{e, e})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(w.String()) {
			if strings.Contains(line, "fd00:20::77") {
				got = append(got, strings.TrimSpace(strings.TrimPrefix(line, "pod:")))
			}
		}
		dst := strings.Replace(destinations, "::/0", "default", 1)
		by := "ip -6 route add " + dst + " via fd00:20::77 dev egress6 src 2600:1f18:0:1::5 table 73 proto 72"
		want := []string{"udp dport 5555 ip6 daddr fd00:20::77 notrack",
			"ip -6 route add throw fd00:20::77/128 table 73 proto 72",
			"ip -6 route add fd00:20::77/128 dev egress6 metric 2048 table 73 proto 72", by, by}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", destinations, d)
		}
	}
}
