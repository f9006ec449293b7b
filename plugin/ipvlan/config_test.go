// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
)

func TestConfigRead(t *testing.T) { codectest.Reads(t, (*Config).Describe) }

func FuzzConfigRead(f *testing.F) {
	codectest.Fuzz(f, (*Config).Describe, append(codectest.Plugins(f, "../../conflist-examples"),
		`{"master":"eth1","mode":"l3","mtu":1500,"dns":{"nameservers":["10.0.0.2"],"domain":"x"},"ipam":{"type":"host-local","x":1},"linkInContainer":true}`,
		`{"Master":null,"mode":"l\u0032","mtu":1.5e3,"dns":null,"ipam":{"TYPE":7},"linkInContainer":"yes"}`)...)
}
