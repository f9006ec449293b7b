// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// VPCCIDRs asks EC2 (DescribeVpcs) for the IPv4 CIDRs of the VPC, the primary one
// first. EC2 lists CIDRs that are coming or gone as well; these are not among them.
func (c *Client) VPCCIDRs(ctx context.Context, vpc string) ([]netip.Prefix, error) {
	const action = "DescribeVpcs"
	out, err := call(ctx, c, action, c.ec2.DescribeVpcs, &ec2.DescribeVpcsInput{VpcIds: []string{vpc}})
	if err != nil {
		return nil, err
	}
	if len(out.Vpcs) == 0 {
		return nil, &Error{Action: action, Err: fmt.Errorf("%s: %w", vpc, ErrNotFound)}
	}
	blocks := []string{sdk.ToString(out.Vpcs[0].CidrBlock)}
	for _, a := range out.Vpcs[0].CidrBlockAssociationSet {
		if a.CidrBlockState != nil && a.CidrBlockState.State == types.VpcCidrBlockStateCodeAssociated {
			blocks = append(blocks, sdk.ToString(a.CidrBlock))
		}
	}
	cidrs, err := parseAll(ipv4CIDR, blocks)
	if err != nil {
		return nil, &Error{Action: action, Err: err}
	}
	return unique(cidrs), nil
}

// PeerCIDRs asks EC2 (DescribeVpcPeeringConnections) for the IPv4 CIDRs of the VPCs
// that the VPC has an active peering connection with, whoever requested it. They are
// sorted, each is there once.
func (c *Client) PeerCIDRs(ctx context.Context, vpc string) ([]netip.Prefix, error) {
	const action = "DescribeVpcPeeringConnections"
	var blocks []string
	in := &ec2.DescribeVpcPeeringConnectionsInput{
		MaxResults: new(int32(pageSize)),
		Filters:    sdkFilters([]Filter{{"status-code", []string{"active"}}}), // EC2 goes on listing deleted ones for a while
	}
	for {
		out, err := call(ctx, c, action, c.ec2.DescribeVpcPeeringConnections, in)
		if err != nil {
			return nil, err
		}
		for _, p := range out.VpcPeeringConnections {
			blocks = append(blocks, peerBlocks(p, vpc)...)
		}
		if in.NextToken = out.NextToken; isLast(in.NextToken) {
			break
		}
	}
	cidrs, err := parseAll(ipv4CIDR, blocks)
	if err != nil {
		return nil, &Error{Action: action, Err: err}
	}
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	return slices.Compact(cidrs), nil
}

// peerBlocks are the CIDRs of the other side, if the VPC is one of the two.
func peerBlocks(p types.VpcPeeringConnection, vpc string) []string {
	if p.RequesterVpcInfo == nil || p.AccepterVpcInfo == nil {
		return nil
	}
	other := p.RequesterVpcInfo
	switch vpc {
	case sdk.ToString(p.RequesterVpcInfo.VpcId):
		other = p.AccepterVpcInfo
	case sdk.ToString(p.AccepterVpcInfo.VpcId):
	default:
		return nil
	}
	return texts(other.CidrBlockSet, func(b types.CidrBlock) *string { return b.CidrBlock })
}
