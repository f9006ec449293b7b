// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"
	"math"
	"net/netip"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A Subnet is a subnet of a VPC.
type Subnet struct {
	ID       string
	VPC      string
	Zone     string       // availability zone
	CIDR     netip.Prefix // zero if the subnet has no IPv4
	IPv6CIDR netip.Prefix // zero if the subnet has no IPv6
	Free     int          // free IPv4 addresses; if they are fragmented, the subnet may have no free /28
	Default  bool         // it is the default subnet of its zone
	Outpost  string       // ARN of the Outpost that has the subnet; empty: the subnet is not in an Outpost
	Tags     map[string]string
}

// Subnets returns the subnets of the VPC in the availability zone (DescribeSubnets), in EC2's order.
func (c *Client) Subnets(ctx context.Context, vpc, zone string) ([]Subnet, error) {
	const action = "DescribeSubnets"
	var subnets []Subnet
	in := &ec2.DescribeSubnetsInput{MaxResults: new(int32(pageSize)), Filters: sdkFilters([]Filter{
		{"vpc-id", []string{vpc}}, {"availability-zone", []string{zone}},
	})}
	err := eachPage(action, func(token *string) (next *string, err error) {
		in.NextToken = token
		out, err := call(ctx, c, action, c.ec2.DescribeSubnets, in)
		if err != nil {
			return nil, err
		}
		for _, s := range out.Subnets {
			subnet, err := parseSubnet(s)
			err = validate(action, err, checkSubject(vpc, s.VpcId), checkSubject(zone, s.AvailabilityZone))
			if err != nil {
				return nil, err
			}
			subnets = append(subnets, subnet)
		}
		return out.NextToken, nil
	})
	if err != nil {
		return nil, err
	}
	return subnets, nil
}

func parseSubnet(s types.Subnet) (Subnet, error) {
	subnet := Subnet{
		ID:      sdk.ToString(s.SubnetId),
		VPC:     sdk.ToString(s.VpcId),
		Zone:    sdk.ToString(s.AvailabilityZone),
		Default: sdk.ToBool(s.DefaultForAz),
		Outpost: sdk.ToString(s.OutpostArn),
		Tags:    tagMap(s.Tags),
	}
	errs := [4]error{checkID("subnet-", subnet.ID)}
	if s.CidrBlock != nil {
		subnet.CIDR, errs[1] = ipv4CIDR(*s.CidrBlock)
	}
	if s.AvailableIpAddressCount != nil {
		subnet.Free, errs[2] = parseNumber("the number of free addresses", s.AvailableIpAddressCount, 0, math.MaxInt32)
	}
	for _, a := range s.Ipv6CidrBlockAssociationSet {
		if a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State == types.SubnetCidrBlockStateCodeAssociated {
			subnet.IPv6CIDR, errs[3] = ipv6CIDR(sdk.ToString(a.Ipv6CidrBlock))
		}
	}
	return subnet, errors.Join(errs[:]...)
}
