// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A VPC is a virtual private cloud and its CIDRs.
type VPC struct {
	ID        string
	CIDRs     []netip.Prefix // IPv4, the primary one first
	IPv6CIDRs []netip.Prefix
}

// VPC returns a VPC (DescribeVpcs), with the CIDRs that are associated with it at present.
func (c *Client) VPC(ctx context.Context, id string) (VPC, error) {
	const action = "DescribeVpcs"
	out, err := call(ctx, c, action, c.ec2.DescribeVpcs, &ec2.DescribeVpcsInput{VpcIds: []string{id}})
	if err != nil {
		return VPC{}, err
	}
	if len(out.Vpcs) == 0 {
		return VPC{}, &Error{Action: action, Err: fmt.Errorf("%s: %w", id, ErrNotFound)}
	}
	v := out.Vpcs[0]
	blocks, blocks6 := []string{sdk.ToString(v.CidrBlock)}, []string(nil)
	for _, a := range v.CidrBlockAssociationSet {
		if a.CidrBlockState != nil && a.CidrBlockState.State == types.VpcCidrBlockStateCodeAssociated {
			blocks = append(blocks, sdk.ToString(a.CidrBlock))
		}
	}
	for _, a := range v.Ipv6CidrBlockAssociationSet {
		if a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State == types.VpcCidrBlockStateCodeAssociated {
			blocks6 = append(blocks6, sdk.ToString(a.Ipv6CidrBlock))
		}
	}
	vpc, err := parseVPC(id, blocks, blocks6)
	if err := validate(action, err, checkSubject(id, v.VpcId)); err != nil {
		return VPC{}, err
	}
	return vpc, nil
}

// VPCCIDRs returns the IPv4 CIDRs of a VPC (DescribeVpcs).
func (c *Client) VPCCIDRs(ctx context.Context, vpc string) ([]netip.Prefix, error) {
	v, err := c.VPC(ctx, vpc)
	return v.CIDRs, err
}

// Peers returns the peers of a VPC, sorted by ID (DescribeVpcPeeringConnections). A peer has an active peering
// connection to the VPC. Either of the two VPCs may have requested the connection.
func (c *Client) Peers(ctx context.Context, vpc string) ([]VPC, error) {
	const action = "DescribeVpcPeeringConnections"
	var peers []VPC
	in := &ec2.DescribeVpcPeeringConnectionsInput{
		MaxResults: new(int32(pageSize)),
		Filters:    sdkFilters([]Filter{{"status-code", []string{"active"}}}), // EC2 also lists deleted connections
	}
	err := eachPage(action, func(token *string) (next *string, err error) {
		in.NextToken = token
		out, err := call(ctx, c, action, c.ec2.DescribeVpcPeeringConnections, in)
		if err != nil {
			return nil, err
		}
		for _, p := range out.VpcPeeringConnections {
			other := otherSide(p, vpc)
			if other == nil {
				continue
			}
			peer, err := parsePeer(other)
			if err := validate(action, err); err != nil {
				return nil, err
			}
			peers = append(peers, peer)
		}
		return out.NextToken, nil
	})
	if err != nil {
		return nil, err
	}
	// not slices.SortFunc, which would make the program 14 kB larger
	sort.Slice(peers, func(i, j int) bool { return peers[i].ID < peers[j].ID })
	return peers, nil
}

// PeerCIDRs returns the IPv4 CIDRs of the VPC's peers (DescribeVpcPeeringConnections), sorted and without duplicates.
func (c *Client) PeerCIDRs(ctx context.Context, vpc string) ([]netip.Prefix, error) {
	peers, err := c.Peers(ctx, vpc)
	var cidrs []netip.Prefix
	for _, p := range peers {
		cidrs = append(cidrs, p.CIDRs...)
	}
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	return slices.Compact(cidrs), err
}

// otherSide returns the VPC on the other side of a peering connection, or nil if the given VPC is on neither side.
func otherSide(p types.VpcPeeringConnection, vpc string) *types.VpcPeeringConnectionVpcInfo {
	switch {
	case p.RequesterVpcInfo == nil || p.AccepterVpcInfo == nil:
		return nil
	case vpc == sdk.ToString(p.RequesterVpcInfo.VpcId):
		return p.AccepterVpcInfo
	case vpc == sdk.ToString(p.AccepterVpcInfo.VpcId):
		return p.RequesterVpcInfo
	}
	return nil
}

// parsePeer converts one side of a peering connection from the SDK's type. The VPC's primary CIDR is in cidrBlock, in
// cidrBlockSet, or usually in both (API reference, VpcPeeringConnectionVpcInfo: none of its elements is required).
func parsePeer(v *types.VpcPeeringConnectionVpcInfo) (VPC, error) {
	blocks := fieldTexts(v.CidrBlockSet, func(b types.CidrBlock) *string { return b.CidrBlock })
	if v.CidrBlock != nil {
		blocks = append([]string{*v.CidrBlock}, blocks...)
	}
	return parseVPC(sdk.ToString(v.VpcId), blocks, fieldTexts(v.Ipv6CidrBlockSet, func(b types.Ipv6CidrBlock) *string {
		return b.Ipv6CidrBlock
	}))
}

func parseVPC(id string, blocks, blocks6 []string) (VPC, error) {
	cidrs, err := parseAll(ipv4CIDR, blocks)
	cidrs6, err6 := parseAll(ipv6CIDR, blocks6)
	vpc := VPC{ID: id, CIDRs: uniqueValues(cidrs), IPv6CIDRs: uniqueValues(cidrs6)}
	return vpc, errors.Join(checkID("vpc-", id), err, err6)
}
