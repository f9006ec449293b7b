// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/acceptance/compare"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/iam"
)

// compareAnswers compares the answers of EC2 with the answers of a simulator in this process, and prints the
// differences. It returns the number of differences that make the comparison fail (see compare.Row.Fails).
func (c *cloud) compareAnswers(ctx context.Context, p plan, m *madeObjects, out output) (failures int, err error) {
	simulated, err := c.newSimulator(ctx, p, m)
	if err != nil {
		return 0, fmt.Errorf("make a simulator with the VPC and the subnets of this run: %w", err)
	}
	node := m.nodes[0]
	const reads = 8 // the suite's client sends at most 8 requests to metadata at once
	tunnel := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: reads,
		DialContext: func(_ context.Context, network, addr string) (net.Conn, error) {
			// Connect from the instance, because its metadata service does not answer other machines.
			return node.shell.Dial(network, addr)
		}}}
	defer tunnel.CloseIdleConnections()
	real := compare.Place{
		Name: "real", EC2: &http.Client{}, Metadata: tunnel, MetadataURL: "http://169.254.169.254",
		Node: node.id, Other: m.nodes[1].id, Type: p.kind, Zone: *p.subnet.AvailabilityZone, VPC: *p.vpc.VpcId,
		Subnet: *p.subnet.SubnetId,
		Group:  m.group, NodeAddr: node.addr, OtherAddr: m.nodes[1].addr, Account: c.account,
	}
	out.line("comparing the answers of EC2 with those of the simulator")
	t, err := compare.Run(ctx, real, simulated, compare.Options{Tags: map[string]string{tagRun: p.run}, Pause: c.pause})
	printTable(t, out)
	if err != nil {
		return 0, err
	}
	return len(t.Failures()), checkCoverage(t)
}

// checkCoverage checks that the comparison has called each EC2 action that a node's role may need.
func checkCoverage(t compare.Table) error {
	needs := iam.Needs{Mode: lease.ProvisionFull, ENIGC: true,
		Networks: []iam.Network{{Pools: []lease.Policy{{Families: []lease.Family{lease.IPv4, lease.IPv6},
			Peers: true}}}}}
	for _, action := range needs.Actions() {
		if !slices.Contains(t.Actions, action) {
			return fmt.Errorf("the comparison has left out %s", action)
		}
	}
	return nil
}

// printTable prints the table of the comparison. It first prints the differences that make the comparison fail.
func printTable(t compare.Table, out output) {
	matter := 0
	for _, r := range t.Rows {
		if r.Fails() {
			matter++
		}
	}
	out.line("compared %d fields of %d actions and %d paths of metadata: %d differ, and %d of these fail the test",
		t.Fields, len(t.Actions), len(t.Paths), len(t.Rows), matter)
	if len(t.Rows) == 0 {
		return
	}
	out.line("%-6s %-72s %-40s %s", "", "field", "real", "simulator")
	rows := slices.Clone(t.Rows)
	slices.SortStableFunc(rows, func(a, b compare.Row) int { return rowRank(a) - rowRank(b) })
	for _, r := range rows {
		out.line("%-6s %-72s %-40s %s", []string{"FAIL", "kind", "value"}[rowRank(r)], r.Call+": "+r.Field,
			orDash(r.Real), orDash(r.Sim))
		if r.Fails() {
			out.line("       in the step: %s", r.Step)
		}
	}
	out.line("FAIL: the field differs in kind, and the suite reads it. kind: the field differs in kind, and the " +
		"suite does not read it. value: only the value differs.")
}

func rowRank(r compare.Row) int {
	switch {
	case r.Fails():
		return 0
	case r.Kind:
		return 1
	}
	return 2
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func (c *cloud) newSimulator(ctx context.Context, p plan, m *madeObjects) (compare.Place, error) {
	config, err := c.simConfig(ctx, p, m)
	if err != nil {
		return compare.Place{}, err
	}
	sim, err := ec2sim.New(config)
	if err != nil {
		return compare.Place{}, err
	}
	var all []*ec2sim.Instance
	for _, n := range m.nodes {
		i, err := sim.RunInstance(ec2sim.RunInstance{Type: p.kind, Subnet: *p.subnet.SubnetId,
			SecurityGroups: []string{m.group}, PrivateIP: n.addr,
			PublicIP: new(true), ENITags: map[string]string{tagRun: p.run, "Name": p.objectName()}})
		if err != nil {
			return compare.Place{}, err
		}
		all = append(all, i)
	}
	return compare.Place{
		Name: "simulated", EC2: ec2sim.Direct{Handler: sim}, EC2URL: "http://simulator.invalid",
		Metadata: ec2sim.Direct{Handler: all[0].Metadata()}, MetadataURL: "http://simulator.invalid",
		Node: all[0].ID, Other: all[1].ID, Type: p.kind, Zone: *p.subnet.AvailabilityZone, VPC: *p.vpc.VpcId,
		Subnet: *p.subnet.SubnetId,
		Group:  m.group, NodeAddr: m.nodes[0].addr, OtherAddr: m.nodes[1].addr, Account: c.account,
	}, nil
}

// simConfig returns a configuration with the run's VPC, the VPC's subnets in the run's zone, and the VPC's active
// peerings. It gets the subnets and the peerings from EC2.
func (c *cloud) simConfig(ctx context.Context, p plan, m *madeObjects) (ec2sim.Config, error) {
	subnets, err := c.ec2.DescribeSubnets(ctx,
		&ec2.DescribeSubnetsInput{Filters: newFilters("vpc-id", *p.vpc.VpcId, "availability-zone",
			*p.subnet.AvailabilityZone)})
	if err != nil {
		return ec2sim.Config{}, err
	}
	peerings, err := c.ec2.DescribeVpcPeeringConnections(ctx, &ec2.DescribeVpcPeeringConnectionsInput{
		Filters: newFilters("status-code", "active")})
	if err != nil {
		return ec2sim.Config{}, err
	}
	config := ec2sim.Config{Region: c.region, Account: c.account, VPCs: []ec2sim.VPC{simVPC(p.vpc)},
		SecurityGroups: []string{m.group}, GroupNames: map[string]string{m.group: p.objectName()},
		GroupVPCs: map[string]string{m.group: *p.vpc.VpcId}}
	for _, s := range subnets.Subnets {
		config.Subnets = append(config.Subnets, simSubnet(s))
	}
	for _, v := range peerings.VpcPeeringConnections {
		peering := ec2sim.Peering{ID: sdk.ToString(v.VpcPeeringConnectionId), Requester: simPeer(v.RequesterVpcInfo),
			Accepter: simPeer(v.AccepterVpcInfo), Tags: tagMap(v.Tags)}
		// Leave out peerings between other VPCs: the simulator has only the run's VPC.
		if peering.Requester.ID == *p.vpc.VpcId || peering.Accepter.ID == *p.vpc.VpcId {
			config.Peerings = append(config.Peerings, peering)
		}
	}
	return config, nil
}

func simVPC(v types.Vpc) ec2sim.VPC {
	like := ec2sim.VPC{ID: *v.VpcId, Default: sdk.ToBool(v.IsDefault), Tags: tagMap(v.Tags)}
	for _, a := range v.CidrBlockAssociationSet {
		if a.CidrBlockState != nil && a.CidrBlockState.State == types.VpcCidrBlockStateCodeAssociated {
			like.CIDRs = append(like.CIDRs, parseBlock(a.CidrBlock))
		} else {
			like.FormerCIDRs = append(like.FormerCIDRs, parseBlock(a.CidrBlock))
		}
	}
	for _, a := range v.Ipv6CidrBlockAssociationSet {
		if a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State == types.VpcCidrBlockStateCodeAssociated {
			like.IPv6CIDRs = append(like.IPv6CIDRs, parseBlock(a.Ipv6CidrBlock))
		}
	}
	primary := parseBlock(v.CidrBlock)
	slices.SortStableFunc(like.CIDRs, func(a, b netip.Prefix) int {
		return boolRank(b == primary) - boolRank(a == primary)
	})
	return like
}

func boolRank(first bool) int {
	if first {
		return 1
	}
	return 0
}

func simSubnet(s types.Subnet) ec2sim.Subnet {
	like := ec2sim.Subnet{ID: *s.SubnetId, VPC: *s.VpcId, Zone: *s.AvailabilityZone, CIDR: parseBlock(s.CidrBlock),
		MapPublicIP: sdk.ToBool(s.MapPublicIpOnLaunch),
		AssignIPv6:  sdk.ToBool(s.AssignIpv6AddressOnCreation), Default: sdk.ToBool(s.DefaultForAz),
		Tags: tagMap(s.Tags)}
	for _, a := range s.Ipv6CidrBlockAssociationSet {
		if a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State == types.SubnetCidrBlockStateCodeAssociated {
			like.IPv6CIDR = parseBlock(a.Ipv6CidrBlock)
		}
	}
	return like
}

func simPeer(v *types.VpcPeeringConnectionVpcInfo) ec2sim.PeerVPC {
	if v == nil {
		return ec2sim.PeerVPC{}
	}
	like := ec2sim.PeerVPC{ID: sdk.ToString(v.VpcId), Account: sdk.ToString(v.OwnerId), Region: sdk.ToString(v.Region)}
	for _, b := range v.CidrBlockSet {
		like.CIDRs = append(like.CIDRs, parseBlock(b.CidrBlock))
	}
	for _, b := range v.Ipv6CidrBlockSet {
		like.IPv6CIDRs = append(like.IPv6CIDRs, parseBlock(b.Ipv6CidrBlock))
	}
	return like
}

// parseBlock parses a CIDR block from an answer of EC2, or returns the zero Prefix, which ec2sim.New refuses.
func parseBlock(text *string) netip.Prefix {
	p, _ := netip.ParsePrefix(sdk.ToString(text))
	return p
}

// tagMap converts the tags to a map, without AWS's own tags ("aws:..."), which no user can set.
func tagMap(tags []types.Tag) map[string]string {
	all := map[string]string{}
	for _, t := range tags {
		if !strings.HasPrefix(sdk.ToString(t.Key), "aws:") {
			all[sdk.ToString(t.Key)] = sdk.ToString(t.Value)
		}
	}
	return all
}
