// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func TestStrange(t *testing.T) {
	cidr, addr := netip.MustParsePrefix, netip.MustParseAddr
	s := &registry.State{ENIs: map[string]registry.ENI{
		"eni-1": {CIDR: cidr("10.0.0.0/24"), CIDR6: cidr("2001:db8::/64"), Addrs: []netip.Addr{addr("10.0.0.9")}},
		"eni-2": {CIDR: cidr("10.0.0.0/24"), Addrs: []netip.Addr{addr("10.0.0.10")},
			Prefixes: []registry.Prefix{{CIDR: cidr("10.0.0.32/28")}}},
		"eni-3": {},
	}}
	for _, test := range []struct{ eni, block, want string }{
		{"eni-1", "10.0.0.4/32", ""},
		{"eni-1", "10.0.0.9/32", ""}, // eni-1 already has the address
		{"eni-1", "10.0.0.254/32", ""},
		{"eni-1", "10.0.0.48/28", ""},
		{"eni-1", "2001:db8::4/128", ""},
		{"eni-1", "2001:db8:0:0:1::/80", ""},
		{"eni-3", "192.168.0.1/32", ""}, // the subnet of eni-3 is not known
		{"eni-1", "10.0.1.4/32", "the subnet of this ENI is 10.0.0.0/24"},
		{"eni-1", "10.0.0.0/16", "the subnet of this ENI is 10.0.0.0/24"},
		{"eni-1", "2001:db8:1::4/128", "the subnet of this ENI is 2001:db8::/64"},
		{"eni-1", "10.0.0.0/32", "AWS reserves"},
		{"eni-1", "10.0.0.1/32", "AWS reserves"},
		{"eni-1", "10.0.0.3/32", "AWS reserves"},
		{"eni-1", "10.0.0.255/32", "AWS reserves"},
		{"eni-1", "10.0.0.0/28", "AWS reserves"},
		{"eni-1", "10.0.0.240/28", "AWS reserves"},
		{"eni-1", "2001:db8::1/128", "AWS reserves"},
		{"eni-1", "2001:db8::/80", "AWS reserves"},
		{"eni-1", "2001:db8:0:0:ffff::/80", "AWS reserves"},
		{"eni-1", "10.0.0.10/32", "eni-2 has this address"},
		{"eni-1", "10.0.0.33/32", "eni-2 has this address"},
		{"eni-1", "10.0.0.32/28", "eni-2 has this address"},
		{"eni-3", "10.0.0.10/32", "eni-2 has this address"},
	} {
		b := cidr(test.block)
		err := Strange(s, test.eni, s.ENIs[test.eni], nil, []netip.Prefix{b})
		if b.IsSingleIP() {
			err = Strange(s, test.eni, s.ENIs[test.eni], []netip.Addr{b.Addr()}, nil)
		}
		if got := errText(err); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s on %s: got %q, want %q", test.block, test.eni, got, test.want)
		}
	}
}

// TestStrangeNew checks which ENI EC2 may return as a new one.
func TestStrangeNew(t *testing.T) {
	s := &registry.State{ENIs: map[string]registry.ENI{"eni-1": {}}}
	const mine = "CNI-ENI i-1"
	for want, e := range map[string]aws.ENI{
		"":                {ID: "eni-2", Description: mine},
		"has had it":      {ID: "eni-1", Description: mine},
		"its description": {ID: "eni-2", Description: "CNI-ENI i-2"},
		"attached to i-2": {ID: "eni-2", Description: mine, Instance: "i-2"},
	} {
		if got := errText(StrangeNew(s, e, mine)); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%+v: got %q, want %q", e, got, want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
