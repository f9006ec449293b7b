// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

func TestMain(m *testing.M) { os.Exit(nltest.Guard{M: m}.Run()) }

func TestConfigRead(t *testing.T) { codectest.Reads(t, (*Config).Describe) }

func FuzzConfigRead(f *testing.F) {
	codectest.Fuzz(f, (*Config).Describe, append(codectest.Plugins(f, "../../conflist-examples"),
		`{"egress":{"a":{"gateways":["172.20.0.77"],"destinations":["0.0.0.0/0"],"except":[],"mtu":1500,"namespaces":["x"],"selectable":null,"routers":["y"],"clients":["10.0.0.0/8"],"routerCidrs":["10.0.7.0/24"]}},"egressPort":4789}`,
		`{"Egress":{"a":null,"a":{}},"egressPort":"5555","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"cni-ipvlan-vpc-k8s/egress":"a"}}}`)...)
}

// config returns the validated configuration with this text.
func config(t *testing.T, text string) *Config {
	t.Helper()
	c := new(Config)
	if err := json.Unmarshal([]byte(text), c); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

// egresses returns the text of a configuration with these egresses.
func egresses(all ...string) string { return `{"egress": {` + strings.Join(all, ", ") + `}}` }

// TestConfigMistakes: each mistake names its key, its value, and what would be right.
func TestConfigMistakes(t *testing.T) {
	const (
		gateways = `"gateways": ["172.20.0.77"]`
		partner  = `"destinations": ["203.0.113.0/24"]`
	)
	one := func(keys ...string) string {
		return egresses(`"one": {"selectable": ["x"], ` + strings.Join(keys, ", ") + `}`)
	}
	for _, tt := range []struct {
		name, config, want string // want is empty if the configuration is right
	}{
		{"none", `{}`, ""},
		{"one", one(gateways, partner), ""},
		{"the whole internet", one(`"gateways": ["172.20.0.77", "fd00::77"]`, `"destinations": ["0.0.0.0/0", "::/0"]`,
			`"except": ["2600:1f18::/56"]`), ""},
		{"IPv6 of the whole internet without a VPC", one(`"gateways": ["fd00::77"]`, `"destinations": ["2000::/3"]`,
			`"except": ["10.0.0.0/8"]`), "destinations: 2000::/3: want the IPv6 CIDR of the pods' VPC in \"except\""},
		{"an address", one(gateways, `"destinations": ["203.0.113.7"]`), ""},
		{"Services with public addresses, excepted", one(`"gateways": ["198.51.100.7"]`,
			`"destinations": ["0.0.0.0/0"]`, `"except": ["198.51.100.0/24"]`), ""},
		{"port", `{"egressPort": 49152}`, "egressPort: 49152: want a port from 1 to 49151"},
		{"no gateway", one(partner), "egress: one: gateways must be specified"},
		{"a gateway that is no address", one(`"gateways": ["router.egress.svc"]`, partner),
			`gateways: "router.egress.svc": want an address`},
		{"a gateway that no host has", one(`"gateways": ["0.0.0.0"]`, partner),
			`gateways: "0.0.0.0": want the ClusterIP`},
		{"two gateways of a family", one(`"gateways": ["172.20.0.77", "172.20.0.78"]`, partner),
			"gateways: 172.20.0.78: want at most one address of IPv4"},
		{"no destination", one(gateways), "destinations must be specified"},
		{"no CIDR", one(gateways, `"destinations": ["partner.example"]`),
			`destinations: "partner.example": want a CIDR`},
		{"bits beyond the mask", one(gateways, `"destinations": ["203.0.113.7/24"]`), ""},
		{"the same twice", one(gateways, `"destinations": ["203.0.113.0/24", "203.0.113.0/24"]`), ""},
		{"a destination without a gateway", one(gateways, `"destinations": ["3fff::/64"]`),
			"destinations: 3fff::/64: want an IPv6 address in gateways"},
		{"the gateway in a destination", one(gateways, `"destinations": ["172.20.0.0/16"]`),
			"destinations: 172.20.0.0/16: the gateway 172.20.0.77 is in this destination"},
		{"the gateway itself", one(gateways, `"destinations": ["172.20.0.77"]`),
			"destinations: 172.20.0.77/32: the gateway 172.20.0.77 is in this destination"},
		{"Services with public addresses", one(`"gateways": ["198.51.100.7"]`, `"destinations": ["0.0.0.0/0"]`),
			`Make the destination smaller, or add the CIDR of the Services to "except"`},
		{"the metadata service", one(gateways, `"destinations": ["169.254.169.254"]`),
			"destinations: 169.254.169.254/32: no router forwards to 169.254.0.0/16"},
		{"the metadata service by IPv6", one(`"gateways": ["fd00::77"]`, `"destinations": ["fd00:ec2::254"]`),
			"no router forwards to fd00:ec2::/32"},
		{"routerCidrs", one(gateways, partner, `"routerCidrs": ["10.0.7.0/33"]`),
			`routerCidrs: "10.0.7.0/33": want a CIDR`},
		{"no clients", egresses(`"one": {` + gateways + `, ` + partner + `}`),
			"namespaces or selectable must be specified"},
		{"routers of IPv6 that serve all clients", one(`"gateways": ["fd00::77"]`, `"destinations": ["3fff::/64"]`,
			`"routers": ["x"]`), "clients must be specified if gateways has an IPv6 address"},
		{"MTU", one(gateways, partner, `"mtu": 576`), "mtu: 576: want 1280 to 65535 bytes"},
		{"namespaces", one(gateways, partner, `"namespaces": ["a*b"]`),
			`namespaces: "a*b": want a namespace, or the beginning of a namespace with a * after it`},
		{"routers", one(gateways, partner, `"routers": [""]`), `routers: "": want a namespace`},
		{"a name with a comma", egresses(`"a,b": {` + gateways + `, ` + partner + `}`), "want a name without commas"},
		{"two with the same destination", egresses(
			`"a": {`+gateways+`, `+partner+`, "namespaces": ["pay*"]}`, `"b": {`+gateways+`, `+partner+
				`, "namespaces": ["payments"]}`),
			"egress: a and b: both have the destination 203.0.113.0/24"},
		{"the same destination for others", egresses(
			`"a": {`+gateways+`, `+partner+`, "namespaces": ["pay*"]}`, `"b": {`+gateways+`, `+partner+
				`, "namespaces": ["shop"]}`), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Config
			if err := json.Unmarshal([]byte(tt.config), &c); err != nil {
				t.Fatal(err)
			}
			err := c.Validate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestRole checks the roles of clients and routers, and the errors for pods that may not have the role that they ask
// for.
func TestRole(t *testing.T) {
	const keys = `"gateways": ["172.20.0.77"], "routers": ["egress"], `
	c := config(t, egresses(
		`"bank": {`+keys+
			`"destinations": ["203.0.113.0/24"], "namespaces": ["payments", "ci-*"], "selectable": ["shop"]}`,
		`"internet": {`+keys+`"destinations": ["0.0.0.0/0"], "selectable": ["*"]}`,
		`"same": {"gateways": ["172.20.0.78"], "destinations": ["0.0.0.0/0"], "selectable": ["*"], `+
			`"routers": ["alone"]}`))
	for _, tt := range []struct {
		namespace, annotation, router string
		want                          role
		refused                       string
	}{
		{namespace: "default"},
		{},
		{namespace: "payments", want: role{client: []string{"bank"}}},
		{namespace: "ci-7", want: role{client: []string{"bank"}}},
		{namespace: "shop"},
		{namespace: "shop", annotation: "bank", want: role{client: []string{"bank"}}},
		{namespace: "shop", annotation: " internet ,bank", want: role{client: []string{"bank", "internet"}}},
		{namespace: "payments", annotation: "internet", want: role{client: []string{"bank", "internet"}}},
		{namespace: "payments", annotation: "bank", want: role{client: []string{"bank"}}},
		{namespace: "default", annotation: "bank",
			refused: `annotation cni-ipvlan-vpc-k8s/egress: the egress bank does not allow pods of the ` +
				`namespace "default"`},
		{annotation: "internet", refused: `does not allow pods of the namespace ""`},
		{namespace: "default", annotation: "bnak", refused: `no egress has the name "bnak"`},
		{namespace: "default", annotation: "internet,same",
			refused: "uses the egresses internet and same, which both have the destination 0.0.0.0/0"},
		{namespace: "alone", want: role{router: "same"}},
		{namespace: "alone", annotation: "internet",
			refused: "the namespace makes the pod a router of the egress same, and a router cannot be a client"},
		{namespace: "egress", refused: "may be a router of the egresses bank, internet: it must choose one"},
		{namespace: "egress", router: "bank", want: role{router: "bank"}},
		{namespace: "egress", router: "same",
			refused: "annotation cni-ipvlan-vpc-k8s/egress-router: the egress same does not allow"},
		{namespace: "default", router: "bank", refused: `does not allow pods of the namespace "default"`},
		{namespace: "egress", router: "x", refused: `no egress has the name "x"`},
	} {
		c.RuntimeConfig.Annotations = map[string]string{}
		if tt.annotation != "" {
			c.RuntimeConfig.Annotations[Annotation] = tt.annotation
		}
		if tt.router != "" {
			c.RuntimeConfig.Annotations[RouterAnnotation] = tt.router
		}
		got, err := c.roleOf(plugin.Pod{Namespace: tt.namespace, Name: "pod"})
		switch {
		case tt.refused != "":
			if e, ok := err.(*plugin.Error); !ok || e.Code != plugin.CodeRefused || e.Hint == "" ||
				!strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%+v: got %v", tt, err)
			}
		case err != nil || got.router != tt.want.router || strings.Join(got.client,
			",") != strings.Join(tt.want.client, ","):
			t.Errorf("%+v: got %+v, %v", tt, got, err)
		}
	}
}

// TestNotConfigured: a pod asks for an egress, but the node's configuration has none. ADD must fail, because the pod's
// packets would leave with another address.
func TestNotConfigured(t *testing.T) {
	c := config(t, `{}`)
	c.RuntimeConfig.Annotations = map[string]string{Annotation: "bank"}
	if _, err := c.roleOf(plugin.Pod{Namespace: "default"}); err == nil {
		t.Error("not refused")
	}
}

// TestStatus: if the configuration has an egress, and the kernel lacks FOU, STATUS fails. The error names the modules.
func TestStatus(t *testing.T) {
	nltest.Need(t, "root")
	lacks := nl.Scratch(nl.FOU{}.Supported)
	r := &plugin.Request[Config]{Config: *config(t,
		egresses(`"e": {"gateways": ["172.20.0.77"], "destinations": ["203.0.113.0/24"], "namespaces": ["x"]}`))}
	err := Commands().Status(t.Context(), r)
	e, is := errors.AsType[*plugin.Error](err)
	if (lacks == nil) != (err == nil) || err != nil && (!is || e.Code != plugin.CodeNotAvailable ||
		!strings.Contains(e.Hint, "modules fou, fou6, ipip and ip6_tunnel")) {
		t.Errorf("the kernel lacks %v, STATUS reports %v", lacks, err)
	}
	r.Config = *config(t, `{}`)
	if err := Commands().Status(t.Context(), r); err != nil {
		t.Errorf("without an egress: %v", err)
	}
	if e, is := errors.AsType[*plugin.Error](unavailable(nl.ErrNoModule)); !is ||
		!strings.HasPrefix(e.Hint, "load the missing modules") { // the error names the modules of nftables
		t.Errorf("without a module of nftables: %+v", e)
	}
}

// TestTunnels compares the destinations that a client reaches through the tunnel with the client's routes.
func TestTunnels(t *testing.T) {
	own := prefixes("10.0.0.0/16", "10.0.9.10/32", "198.51.100.0/24", "2600:1f18::/56")
	for _, tt := range []struct {
		egress   string
		yes, no  []string
		excepted string // only the pod's routes keep this destination out of the tunnel
	}{
		{`"destinations": ["203.0.113.0/24"]`, []string{"203.0.113.1"}, []string{"203.0.114.1", "10.1.0.1"}, ""},
		{`"destinations": ["0.0.0.0/0", "::/0"], "except": ["2600:1f18::/56"]`,
			[]string{"203.0.113.1", "3fff::1", "1.1.1.1"},
			[]string{"10.9.9.9", "172.20.0.10", "192.168.1.1", "100.64.0.1", "169.254.169.254", "fd00:ec2::254",
				"fe80::1", "224.0.0.1", "172.20.0.77"}, "198.51.100.1"},
		{`"destinations": ["0.0.0.0/0", "10.9.0.0/16"]`, []string{"10.9.9.9", "8.8.8.8"},
			[]string{"10.8.0.1", "172.20.0.77"}, "10.0.3.3"},
		{`"destinations": ["10.0.0.0/8"]`, []string{"10.9.9.9"}, []string{"172.20.0.1", "8.8.8.8"}, "10.0.9.10"},
		{`"destinations": ["0.0.0.0/0"], "except": ["203.0.113.0/24"]`, []string{"203.0.114.1"},
			[]string{"203.0.113.1"}, ""},
		{`"destinations": ["0.0.0.0/0", "203.0.113.9"], "except": ["203.0.113.0/24"]`, []string{"203.0.113.9"},
			[]string{"203.0.113.8"}, ""},
	} {
		e := config(t, egresses(`"e": {"gateways": ["172.20.0.77", "fd00:20::77"], "namespaces": ["x"], `+tt.egress+
			`}`)).Egresses["e"]
		for want, texts := range map[bool][]string{true: tt.yes, false: tt.no} {
			for _, text := range texts {
				a := netip.MustParseAddr(text)
				if _, got := e.Tunnels(a); got != want && a != e.gateways[0] {
					t.Errorf("%s: %s: by the tunnel %v, want %v", tt.egress, a, got, want)
				}
				if got := tunnelled(t, e, a, own); got != want {
					t.Errorf("%s: %s: by the routes %v, want %v", tt.egress, a, got, want)
				}
			}
		}
		if tt.excepted != "" && tunnelled(t, e, netip.MustParseAddr(tt.excepted), own) {
			t.Errorf("%s: the pod has a route of its own to %s", tt.egress, tt.excepted)
		}
	}
}

// TestConcerns: a DEL does not parse the annotation. It looks into the pod whenever the pod may have a role. If an
// annotation is too long, roleOf refuses it without parsing it.
func TestConcerns(t *testing.T) {
	c := config(t,
		egresses(`"bank": {"gateways": ["172.20.0.77"], "routers": ["egress"], "destinations": ["203.0.113.0/24"], `+
			`"namespaces": ["pay*"], "selectable": ["*"]}`))
	for _, tt := range []struct {
		namespace, annotation string
		want                  bool
	}{
		{"shop", "", false}, {"", "", false}, {"payments", "", true}, {"egress", "", true}, {"shop", "bank", true},
		{"shop", "no such egress", true},
	} {
		c.RuntimeConfig.Annotations = map[string]string{Annotation: tt.annotation}
		pod := plugin.Pod{Namespace: tt.namespace, Name: "p"}
		if got := c.mayHaveRole(pod); got != tt.want {
			t.Errorf("%q in %q: %v, want %v", tt.annotation, tt.namespace, got, tt.want)
		}
		if r, err := c.roleOf(pod); !tt.want && (err != nil || !r.isNone()) {
			t.Errorf("%q in %q has the role %+v, %v", tt.annotation, tt.namespace, r, err)
		}
	}
	pod := plugin.Pod{Namespace: "shop", Name: "p"}
	for text, want := range map[string]string{
		strings.Repeat("bank,",
			50000): "pod shop/p: annotation cni-ipvlan-vpc-k8s/egress has 250000 bytes: 4096 are allowed",
		strings.Repeat("\x1b", 4000): "pod shop/p: annotation cni-ipvlan-vpc-k8s/egress: no egress has the name \"" +
			strings.Repeat(`\x1b`, 64) + "\"... (4000 bytes)",
	} {
		c.RuntimeConfig.Annotations = map[string]string{Annotation: text}
		if _, err := c.roleOf(pod); err == nil || err.Error() != want {
			t.Errorf("%.20q: %v, want %s", text, err, want)
		}
	}
	c.RuntimeConfig.Annotations = map[string]string{RouterAnnotation: strings.Repeat("x", 1<<18)}
	if _, err := c.roleOf(pod); err == nil || len(err.Error()) > 300 {
		t.Errorf("a long name of a router: %.400v", err)
	}
}

// FuzzRole checks that any annotation leads to a role that the configuration allows, or to a short error.
func FuzzRole(f *testing.F) {
	f.Add("shop", " internet ,bank", "")
	f.Add("egress", "", "bank")
	var c Config
	text := egresses(`"bank": {"gateways": ["172.20.0.77"], "routers": ["egress"], "destinations": `+
		`["203.0.113.0/24"], "namespaces": ["pay*"], "selectable": ["shop"]}`,
		`"internet": {"gateways": ["172.20.0.78"], "destinations": ["0.0.0.0/0"], "selectable": ["*"]}`)
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		f.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, namespace, client, router string) {
		c.RuntimeConfig.Annotations = map[string]string{Annotation: client, RouterAnnotation: router}
		if router == "" {
			delete(c.RuntimeConfig.Annotations, RouterAnnotation)
		}
		r, err := c.roleOf(plugin.Pod{Namespace: namespace, Name: "p"})
		if err != nil {
			if len(err.Error()) > 600+4*len(namespace) {
				t.Errorf("an error of %d bytes: %.200q", len(err.Error()), err)
			}
			return
		}
		for _, name := range r.client {
			if _, known := c.Egresses[name]; !known || r.router != "" {
				t.Errorf("%q %q %q: %+v", namespace, client, router, r)
			}
		}
	})
}
