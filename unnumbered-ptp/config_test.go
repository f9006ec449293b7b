// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	lib "crypto/sha1"
	"fmt"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
)

func TestConfigRead(t *testing.T) { codectest.Reads(t, (*Config).Describe) }

func FuzzConfigRead(f *testing.F) {
	codectest.Fuzz(f, (*Config).Describe, append(codectest.Plugins(f, "../conflist-examples"),
		`{"routeTableStart":300,"nodePorts":"","nodePortMark":8192,"hostCidrs":["172.20.0.0/16"],"blockInstanceMetadata":false,"runtimeConfig":{"bandwidth":{"ingressRate":1,"egressRate":2}}}`,
		`{"vethPrefix":"eni","VethPrefix":1}`,
		`{"HostInterface":"eth0","mtu":-0,"routeTableStart":-1,"nodePorts":null,"hostCidrs":[null],"runtimeConfig":{"bandwidth":{"ingressRate":1e9}}}`)...)
}

// TestVethPrefixes: the error for each refused prefix names the reason.
func TestVethPrefixes(t *testing.T) {
	for prefix, want := range map[string]string{
		"": "", "eni": "", "cali": "", "x": "", "A0": "",
		"calix": "want 1 to 4 letters and digits", "e-i": "want 1 to 4", "ëni": "want 1 to 4", "a/b": "want 1 to 4",
		"veth": "the names of all other pairs begin with veth", "eth": "links of nodes have names with this prefix",
		"lo": "links of nodes", "vlan": "links of nodes", "ens": "links of nodes",
	} {
		c := Config{HostInterface: "eth0", ContainerInterface: "eth1", VethPrefix: prefix}
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", prefix, err, want)
		}
	}
}

// TestSHA1 compares sha1 with the standard library, for texts of up to several blocks.
func TestSHA1(t *testing.T) {
	for n := range 200 {
		text := strings.Repeat("pod.", n)[:n]
		h, want := sha1(text), lib.Sum([]byte(text))
		if got := fmt.Sprintf("%08x%08x%08x%08x%08x", h[0], h[1], h[2], h[3], h[4]); got != fmt.Sprintf("%x", want) {
			t.Errorf("of %d bytes: %s, want %x", n, got, want)
		}
	}
}
