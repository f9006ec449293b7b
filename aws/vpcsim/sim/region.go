// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/ec2sim"
)

// region is a VPC with nodes in one range of addresses and pods in another, and a VPC that it is peered with.
var region = ec2sim.Config{
	VPCs: []ec2sim.VPC{
		{ID: "vpc-main", CIDRs: []netip.Prefix{cidr("10.0.0.0/16"), cidr("100.64.0.0/16")}},
		{ID: "vpc-peer", CIDRs: []netip.Prefix{cidr("10.1.0.0/16")}},
	},
	Subnets: []ec2sim.Subnet{
		{ID: "subnet-nodes", VPC: "vpc-main", Zone: zone, CIDR: cidr("10.0.0.0/24"), MapPublicIP: true},
		{ID: "subnet-hosts", VPC: "vpc-main", Zone: zone, CIDR: cidr("10.0.1.0/24")},
		{ID: "subnet-pods1", VPC: "vpc-main", Zone: zone, CIDR: cidr("100.64.0.0/20"), Tags: kubelet},
		{ID: "subnet-pods2", VPC: "vpc-main", Zone: zone, CIDR: cidr("100.64.16.0/20"), Tags: kubelet},
		{ID: "subnet-peer", VPC: "vpc-peer", Zone: zone, CIDR: cidr("10.1.0.0/24")},
	},
	Peerings: []ec2sim.Peering{
		{ID: "pcx-1", Requester: ec2sim.PeerVPC{ID: "vpc-main"}, Accepter: ec2sim.PeerVPC{ID: "vpc-peer"}},
	},
}

const zone = "us-east-1a"

var (
	cidr    = netip.MustParsePrefix
	kubelet = map[string]string{"kubernetes_kubelet": "true"}
)
