// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
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
	for _, tt := range []struct{ namespace, wish, want, refused string }{
		{namespace: "shop"},
		{namespace: ""}, // outside Kubernetes
		{namespace: "payments", want: "payments"},
		{namespace: "payments-eu", want: "payments"},
		{namespace: "payments-audit", want: "audit"},
		{namespace: "payments-audit-eu", want: "audit"}, // the longer beginning
		{namespace: "ingress", want: "public"},
		{namespace: "edge-1"},
		{namespace: "edge-1", wish: "public", want: "public"},
		{namespace: "ingress", wish: "public", want: "public"},
		{namespace: "shop", wish: "default"},
		{namespace: "shop", wish: "public", refused: "does not let the namespace shop ask"},
		{namespace: "", wish: "public", refused: "does not let the namespace  ask"},
		{namespace: "payments", wish: "default", refused: "does not let the namespace payments ask"},
		{namespace: "payments", wish: "audit", refused: "does not let the namespace payments ask"},
		{namespace: "edge-1", wish: "publik", refused: `"publik": there is none of that name`},
	} {
		t.Run(tt.namespace+"/"+tt.wish, func(t *testing.T) {
			c, err := parseConfig(t, poolsConfig)
			if err != nil {
				t.Fatal(err)
			}
			if tt.wish != "" {
				c.RuntimeConfig.Annotations = map[string]string{AnnotationPool: tt.wish}
			}
			p, err := c.choose(plugin.Pod{Namespace: tt.namespace, Name: "pod"})
			if tt.refused != "" {
				e, ok := errors.AsType[*plugin.Error](err)
				if !ok || e.Code != CodePoolRefused || !strings.Contains(err.Error(), tt.refused) || e.Hint == "" {
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

// A pool has the top-level values where it has none of its own.
func TestPoolInherits(t *testing.T) {
	c, err := parseConfig(t, poolsConfig)
	if err != nil {
		t.Fatal(err)
	}
	pools := map[string]Policy{}
	for _, p := range c.pools {
		pools[p.Pool] = p
	}
	if p := pools["payments"]; p.ReuseWait.Seconds() != 90 || p.SubnetTags["pool"] != "payments" || len(p.SubnetTags) != 1 || p.MinIndex != 1 {
		t.Errorf("payments: %+v", p)
	}
	if p := pools["public"]; p.ReuseWait.Seconds() != 300 || p.SubnetTags["kubernetes_kubelet"] != "true" || p.SecurityGroups[0] != "sg-9" {
		t.Errorf("public: %+v", p)
	}
}

func TestPoolMistakes(t *testing.T) {
	_, err := parseConfig(t, `{"secGroupIds": [], "namespaces": ["x"], "ipFamilies": ["IPv5"], "warm": {"min": 5, "max": 2},
		"pools": {
			"a": {"namespaces": ["one", "t*"], "reuseIPWait": -1},
			"b": {"namespaces": ["t*", "t*o", "*x", ""]},
			"default": {}}}`)
	for _, want := range []string{
		"namespaces and selectable belong to a pool of pools",
		`ipFamilies: ["IPv5"]: want IPv4, IPv6, or both`,
		`warm: {"min": 5, "max": 2}`,
		"pools: a: reuseIPWait: -1: want 0 or more",
		`pools: b: namespaces: "t*o": want a namespace, or the beginning of one and a *`,
		`pools: b: namespaces: "*x"`,
		`pools: b: namespaces: "": want`,
		"pools: default: default is the pool of the top-level keys",
		`pools: a and b both have the namespaces "t*"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got\n%v\nwant it to say %q", err, want)
		}
	}
}

// Each pool has ENIs of its own, with its groups, and never an address of another's.
func TestTwoPools(t *testing.T) {
	w := newWorld(t, "m5.xlarge", 20)
	w.policy.Pools, w.policy.SecurityGroups = true, []string{"sg-1"}
	a := w.mustAcquire(1)
	other := w.policy
	other.Pool, other.SecurityGroups = "payments", []string{"sg-77"}
	w.policy, other = other, w.policy
	b := w.mustAcquire(2)
	w.release(2)
	w.policy = other
	w.release(1)
	w.age(hour)
	enis := w.sim.ENIs()
	if len(enis) != 3 || enis[1].SecurityGroups[0] != "sg-1" || enis[2].SecurityGroups[0] != "sg-77" || enis[1].Tags[TagPool] != "default" || enis[2].Tags[TagPool] != "payments" {
		t.Fatalf("ENIs: %+v", enis)
	}
	// With the registry gone, the tags say which ENI is whose.
	w.lose()
	if err := w.pool().Learn(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.age(hour)
	if again := w.mustAcquire(3); again != a {
		t.Errorf("default pool: got %s, want %s", again, a)
	}
	w.policy.Pool, w.policy.SecurityGroups = "payments", []string{"sg-77"}
	if again := w.mustAcquire(4); again != b {
		t.Errorf("pool payments: got %s, want %s", again, b)
	}
}

// An ENI that somebody has tagged as none of ours, as amazon-vpc-cni-k8s knows it, is left alone.
func TestForeignENI(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	id := w.attachForeign(map[string]string{"node.k8s.amazonaws.com/no_manage": "true"})
	a := w.mustAcquire(1)
	for _, e := range w.sim.ENIs() {
		if e.ID == id && e.Addrs[0] == a {
			t.Errorf("pod has %s of the foreign ENI", a)
		}
	}
	w.release(1)
	w.age(hour)
	c := Collection{FreeAfter: 1, Max: -1}
	if err := w.pool().Collect(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
	for _, e := range w.sim.ENIs() {
		if e.ID == id && len(e.Addrs) != 4 {
			t.Errorf("the foreign ENI has %v now", e.Addrs)
		}
	}
}
