// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"slices"
	"testing"
)

// FuzzMetadata: whatever metadata says of an ENI, the Client returns a valid ENI or an error.
func FuzzMetadata(f *testing.F) {
	f.Add("1", "0", "10.0.1.10\n10.0.1.11", "10.0.1.32/28", "10.0.1.0/24", "10.0.0.0/16\n100.64.0.0/16",
		"2600:1f18:1:a::10", "2600:1f18:1:a:1::/80")
	f.Add("0", "", "", "", "", "", "", "")
	f.Add("-1", "4294967296", "<html>", "10.0.1.32", "10.0.1.0/33", "/", "::ffff:10.0.0.1", "fe80::1%eth0")
	f.Fuzz(func(t *testing.T, device, card, addrs, prefix, cidr, vpc, ipv6, ipv6Prefix string) {
		k := &eniValues{mac: "0a:00:00:00:00:02", text: map[string]string{
			"interface-id": "eni-1", "device-number": device, "network-card": card,
			"local-ipv4s": addrs, "ipv4-prefix": prefix, "subnet-ipv4-cidr-block": cidr, "vpc-ipv4-cidr-blocks": vpc,
			"ipv6s": ipv6, "ipv6-prefix": ipv6Prefix,
		}}
		e, err := k.toENI("0a:00:00:00:00:01")
		if err != nil {
			return
		}
		if e.Index == 0 || e.Index < UnknownIndex || e.Card < 0 {
			t.Errorf("card %d, index %d, and it is not the boot ENI", e.Card, e.Index)
		}
		for _, a := range e.Addrs {
			if !a.Is4() {
				t.Errorf("%v among the IPv4 addresses", a)
			}
		}
		for _, p := range slices.Concat(e.Prefixes, e.VPCCIDRs) {
			if !p.Addr().Is4() || p != p.Masked() {
				t.Errorf("%v among the IPv4 prefixes", p)
			}
		}
	})
}
