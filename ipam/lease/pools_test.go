// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

const poolsConfig = `{
	"interfaceIndex": 1, "subnetTags": {"kubernetes_kubelet": "true"}, "secGroupIds": ["sg-1"], "reuseIPWait": 90,
	"pools": {
		"payments": {"subnetTags": {"pool": "payments"}, "secGroupIds": ["sg-77"], "namespaces": ["payments", "payments-*"]},
		"audit":    {"secGroupIds": ["sg-78"], "namespaces": ["payments-audit", "payments-audit-*"]},
		"public":   {"secGroupIds": ["sg-9"], "namespaces": ["ingress"], "selectable": ["edge-*"], "reuseIPWait": 300}
	}
}`

func parseConfig(t *testing.T, text string) (Config, error) {
	t.Helper()
	var c Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return c, c.Validate()
}

func TestChoosePool(t *testing.T) {
	for _, tt := range []struct{ namespace, asked, want, refused string }{
		{namespace: "shop"},
		{namespace: ""}, // outside Kubernetes
		{namespace: "payments", want: "payments"},
		{namespace: "payments-eu", want: "payments"},
		{namespace: "payments-audit", want: "audit"},
		{namespace: "payments-audit-eu", want: "audit"}, // the longer pattern wins
		{namespace: "ingress", want: "public"},
		{namespace: "edge-1"},
		{namespace: "edge-1", asked: "public", want: "public"},
		{namespace: "ingress", asked: "public", want: "public"},
		{namespace: "shop", asked: "default"},
		{namespace: "shop", asked: "public", refused: "does not allow the namespace shop to ask for it"},
		{namespace: "", asked: "public", refused: "does not allow the namespace  to ask for it"},
		{namespace: "payments", asked: "default", refused: "does not allow the namespace payments to ask for it"},
		{namespace: "payments", asked: "audit", refused: "does not allow the namespace payments to ask for it"},
		{namespace: "edge-1", asked: "publik", refused: `"publik", but no pool has that name`},
	} {
		t.Run(tt.namespace+"/"+tt.asked, func(t *testing.T) {
			c, err := parseConfig(t, poolsConfig)
			if err != nil {
				t.Fatal(err)
			}
			if tt.asked != "" {
				c.RuntimeConfig.Annotations = map[string]string{AnnotationPool: tt.asked}
			}
			p, err := c.Choose(plugin.Pod{Namespace: tt.namespace, Name: "pod"})
			if tt.refused != "" {
				e, ok := errors.AsType[*plugin.Error](err)
				if !ok || e.Code != plugin.CodeRefused || !strings.Contains(err.Error(), tt.refused) || e.Hint == "" {
					t.Errorf("got %v, want it refused: %s", err, tt.refused)
				}
				return
			}
			if err != nil || p.Pool != tt.want {
				t.Errorf("got pool %q (%v), want %q", p.Pool, err, tt.want)
			}
		})
	}
}

// TestPoolInherits: a pool has the top-level value of each key that its entry in "pools" lacks.
func TestPoolInherits(t *testing.T) {
	c, err := parseConfig(t, poolsConfig)
	if err != nil {
		t.Fatal(err)
	}
	pools := map[string]Policy{}
	for _, p := range c.pools {
		pools[p.Pool] = p
	}
	if p := pools["payments"]; p.ReuseWait.Seconds() != 90 || p.SubnetTags["pool"] != "payments" ||
		len(p.SubnetTags) != 1 || p.MinIndex != 1 {
		t.Errorf("payments: %+v", p)
	}
	if p := pools["public"]; p.ReuseWait.Seconds() != 300 || p.SubnetTags["kubernetes_kubelet"] != "true" ||
		p.SecurityGroups[0] != "sg-9" {
		t.Errorf("public: %+v", p)
	}
}

func TestPoolMistakes(t *testing.T) {
	_, err := parseConfig(t,
		`{"secGroupIds": [], "namespaces": ["x"], "ipFamilies": ["IPv5"], "warm": {"min": 5, "max": 2},
		"pools": {
			"a": {"namespaces": ["one", "t*"], "reuseIPWait": -1},
			"b": {"namespaces": ["t*", "t*o", "*x", ""]},
			"default": {}}}`)
	for _, want := range []string{
		`the keys "namespaces" and "selectable" are allowed only in an entry of "pools"`,
		`ipFamilies: ["IPv5"]: want IPv4, IPv6, or both`,
		`warm: {"min": 5, "max": 2}`,
		"pools: a: reuseIPWait: -1: want 0 to 86400",
		`pools: b: namespaces: "t*o": want a namespace, or the beginning of a namespace with a * after it`,
		`pools: b: namespaces: "*x"`,
		`pools: b: namespaces: "": want`,
		"pools: default: default is the pool that the top-level keys describe",
		`pools: a and b both have the entry "t*" in "namespaces"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got\n%v\nwant it to say %q", err, want)
		}
	}
}

// TestPermissionFirst: the text of a request is parsed only if the pod's namespace may ask. Otherwise the text costs
// few allocations, and the error does not contain it.
func TestPermissionFirst(t *testing.T) {
	c, err := parseConfig(t, `{"secGroupIds": ["sg-1"], "requests": [{"namespaces": ["db-*"], "ips": true}]}`)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(namespace, annotation string) (float64, error) {
		c.RuntimeConfig.Annotations = map[string]string{nic.Annotation: annotation}
		var err error
		n := testing.AllocsPerRun(5, func() {
			_, err = c.Interfaces("pods", "eth0", plugin.Pod{Namespace: namespace, Name: "p"})
		})
		return n, err
	}
	// The race detector makes each sync.Pool drop objects, so this limit is higher than needed without it. The limit is
	// far lower than one allocation for each object of the text.
	const few = 50
	const refused = `pod shop/p asks for interfaces, and the key "requests" does not allow the namespace "shop" to ask`
	for _, text := range []string{"[{}]", "no JSON", "", `[{"ip": "10.0.0.7"}]`,
		"[" + strings.Repeat(`{"name":"a"},`, 20000) + "{}]", strings.Repeat("\x1b[", 1<<17)} {
		if n, err := ask("shop", text); err == nil || err.Error() != refused || n > few {
			t.Errorf("%.30q: %v allocations, %v", text, n, err)
		}
	}
	if _, err := ask("db-1", `[{"ip": "10.0.0.7"}]`); err != nil {
		t.Errorf("a pod that may ask: %v", err)
	}
	if n, err := ask("db-1", "["+strings.Repeat(`{"name":"a"},`, 20000)+"{}]"); err == nil ||
		!strings.Contains(err.Error(), "the value has 260004 bytes: 32768 are allowed") || n > few {
		t.Errorf("a pod that may ask, with a long text: %v allocations, %v", n, err)
	}
}

// TestHeedOnce: a collection records the tags of ENIs on request once, however many pools the network has.
func TestHeedOnce(t *testing.T) {
	c, err := parseConfig(t, `{"secGroupIds": [], "requests": [{"namespaces": ["*"], "enis": {"for": "pods"}}],
		"pools": {"a": {"namespaces": ["a"]}, "b": {"namespaces": ["b"]}}}`)
	if err != nil {
		t.Fatal(err)
	}
	var s registry.State
	policy := Common(c.Policies()...).Heed(&s, "")
	if len(s.OnRequest) != 1 || !policy.Requestable(map[string]string{"for": "pods", "x": "y"}) {
		t.Errorf("noted %v", s.OnRequest)
	}
}
