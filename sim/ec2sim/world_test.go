// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"reflect"
	"testing"
)

// TestWorld parses all kinds of lines with all kinds of words, and expects a panic for each mistake.
func TestWorld(t *testing.T) {
	got := World(`
		vpc-1    10.0.0.0/16 100.64.0.0/16 2001:db8:1::/56 -10.77.0.0/16 Name=one
		subnet-a 10.0.0.0/24 public
		subnet-b 2001:db8:1:1::/64 10.0.1.0/24 us-east-1b a=b c=d=e
		vpc-2    10.2.0.0/16 default
		subnet-c 10.2.0.0/24 default
		pcx-1    vpc-1 vpc-2
		pcx-2    vpc-9 10.9.0.0/16 2001:db8:9::/56 vpc-1 deleted
	`)
	want := Config{
		VPCs: []VPC{
			{ID: "vpc-1", CIDRs: cidrs("10.0.0.0/16 100.64.0.0/16"), IPv6CIDRs: cidrs("2001:db8:1::/56"),
				FormerCIDRs: cidrs("10.77.0.0/16"), Tags: map[string]string{"Name": "one"}},
			{ID: "vpc-2", CIDRs: cidrs("10.2.0.0/16"), Default: true},
		},
		Subnets: []Subnet{
			{ID: "subnet-a", VPC: "vpc-1", Zone: "us-east-1a", CIDR: cidr("10.0.0.0/24"), MapPublicIP: true},
			{ID: "subnet-b", VPC: "vpc-1", Zone: "us-east-1b", CIDR: cidr("10.0.1.0/24"),
				IPv6CIDR: cidr("2001:db8:1:1::/64"), Tags: map[string]string{"a": "b", "c": "d=e"}},
			{ID: "subnet-c", VPC: "vpc-2", Zone: "us-east-1a", CIDR: cidr("10.2.0.0/24"), Default: true},
		},
		Peerings: []Peering{
			{ID: "pcx-1", Requester: PeerVPC{ID: "vpc-1"}, Accepter: PeerVPC{ID: "vpc-2"}},
			{ID: "pcx-2", Requester: PeerVPC{ID: "vpc-9", CIDRs: cidrs("10.9.0.0/16"),
				IPv6CIDRs: cidrs("2001:db8:9::/56")}, Accepter: PeerVPC{ID: "vpc-1"}, Status: "deleted"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read\n%+v\nwant\n%+v", got, want)
	}
	for _, wrong := range []string{"subnet-a 10.0.0.0/24", "vpc-1 10.0.0.0/33", "vpc-1 10.0.0.0/16 pubilc", "eni-1",
		"vpc-1 10.0.0.0/16\nsubnet-a 10.0.0.0/24 10.0.1.0/24"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q has no mistake", wrong)
				}
			}()
			World(wrong)
		}()
	}
}
