// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// port is where all ends answer.
const port = 8080

// A vpc has a node, and a host that is not a node.
type vpc struct {
	fabric     *vpcsim.Fabric
	node, host *vpcsim.Instance
	families   int // number of families: 1 is IPv4, 2 is both
}

func newVPC(t *testing.T, families int) *vpc {
	t.Helper()
	cidr := netip.MustParsePrefix
	f, err := vpcsim.New(ec2sim.Config{
		VPCs: []ec2sim.VPC{{
			ID: "vpc-1", CIDRs: []netip.Prefix{cidr("10.0.0.0/16"), cidr("100.64.0.0/16")},
			IPv6CIDRs: []netip.Prefix{cidr("2001:db8:0:100::/56")},
		}},
		Subnets: []ec2sim.Subnet{
			{ID: "subnet-node", VPC: "vpc-1", Zone: "us-east-1a", CIDR: cidr("10.0.0.0/24"),
				IPv6CIDR: cidr("2001:db8:0:100::/64")},
			{ID: "subnet-pods", VPC: "vpc-1", Zone: "us-east-1a", CIDR: cidr("100.64.0.0/20"),
				IPv6CIDR: cidr("2001:db8:0:101::/64"),
				Tags:     map[string]string{"kubernetes_kubelet": "true"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	v := &vpc{fabric: f, families: families}
	for name, i := range map[string]**vpcsim.Instance{"node": &v.node, "host": &v.host} {
		if *i, err = f.RunInstance(name, ec2sim.RunInstance{Type: "m5.4xlarge", Subnet: "subnet-node",
			IPv6: families - 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.host.Answer(port); err != nil {
		t.Fatal(err)
	}
	return v
}

// hostAddrs returns the host's addresses, by family.
func (v *vpc) hostAddrs() []netip.Addr { return []netip.Addr{v.host.Addr(), v.host.Addr6()} }
