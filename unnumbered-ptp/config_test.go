// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
)

func TestConfigRead(t *testing.T) { codectest.Reads(t, (*Config).Describe) }

func FuzzConfigRead(f *testing.F) {
	codectest.Fuzz(f, (*Config).Describe, append(codectest.Plugins(f, "../conflist-examples"),
		`{"routeTableStart":300,"nodePorts":"","nodePortMark":8192,"hostCidrs":["172.20.0.0/16"],"blockInstanceMetadata":false,"runtimeConfig":{"bandwidth":{"ingressRate":1,"egressRate":2}}}`,
		`{"HostInterface":"eth0","mtu":-0,"routeTableStart":-1,"nodePorts":null,"hostCidrs":[null],"runtimeConfig":{"bandwidth":{"ingressRate":1e9}}}`)...)
}
