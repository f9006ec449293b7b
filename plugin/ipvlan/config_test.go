// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"net"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

func TestConfigRead(t *testing.T) { codectest.Reads(t, (*Config).Describe) }

func FuzzConfigRead(f *testing.F) {
	codectest.Fuzz(f, (*Config).Describe, append(codectest.Plugins(f, "../../conflist-examples"),
		`{"master":"eth1","mode":"l3","mtu":1500,"dns":{"nameservers":["10.0.0.2"],"domain":"x"},"ipam":{"type":"host-local","x":1},"linkInContainer":true}`,
		`{"Master":null,"mode":"l\u0032","mtu":1.5e3,"dns":null,"ipam":{"TYPE":7},"linkInContainer":"yes"}`)...)
}

// TestSmallMTU: if the MTU is too small for IPv6, an ADD with IPv6 fails and names the key mtu.
func TestSmallMTU(t *testing.T) {
	for address, refused := range map[string]bool{"10.0.1.20/24": false, "2001:db8::20/64": true} {
		ip, subnet, err := net.ParseCIDR(address)
		if err != nil {
			t.Fatal(err)
		}
		prev := &types100.Result{IPs: []*types100.IPConfig{{Address: net.IPNet{IP: ip, Mask: subnet.Mask}}}}
		_, err = add(t.Context(), &plugin.Request[Config]{NetNS: "/none", Prev: prev,
			Config: Config{Master: "lo", MTU: 1279}})
		if err == nil || strings.Contains(err.Error(), "mtu: 1279: ") != refused {
			t.Errorf("%s: %v", address, err)
		}
	}
}
