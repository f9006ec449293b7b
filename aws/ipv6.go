// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"net/netip"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// AssignIPv6 gives the ENI n more IPv6 addresses (AssignIpv6Addresses), with the same
// uncertainty as Assign.
func (c *Client) AssignIPv6(ctx context.Context, eni string, n int) ([]netip.Addr, error) {
	addrs, _, err := c.assignIPv6(ctx, &ec2.AssignIpv6AddressesInput{NetworkInterfaceId: &eni, Ipv6AddressCount: new(int32(n))})
	return addrs, err
}

// AssignIPv6Prefixes gives the ENI n more delegated /80 prefixes, by the same EC2 action.
func (c *Client) AssignIPv6Prefixes(ctx context.Context, eni string, n int) ([]netip.Prefix, error) {
	_, prefixes, err := c.assignIPv6(ctx, &ec2.AssignIpv6AddressesInput{NetworkInterfaceId: &eni, Ipv6PrefixCount: new(int32(n))})
	return prefixes, err
}

func (c *Client) assignIPv6(ctx context.Context, in *ec2.AssignIpv6AddressesInput) ([]netip.Addr, []netip.Prefix, error) {
	const action = "AssignIpv6Addresses"
	out, err := call(ctx, c, action, c.ec2.AssignIpv6Addresses, in)
	if err != nil {
		return nil, nil, err
	}
	addrs, err := parseAll(ipv6, out.AssignedIpv6Addresses)
	if err != nil {
		return nil, nil, &Error{Action: action, Err: err}
	}
	prefixes, err := parseAll(ipv6CIDR, out.AssignedIpv6Prefixes)
	if err != nil {
		return nil, nil, &Error{Action: action, Err: err}
	}
	changed(ctx, action, out.ResultMetadata, "eni", sdk.ToString(in.NetworkInterfaceId), "addrs", strings.Join(append(strs(addrs), strs(prefixes)...), ","))
	return addrs, prefixes, nil
}

// UnassignIPv6 takes IPv6 addresses and delegated prefixes from the ENI
// (UnassignIpv6Addresses), all in one call.
func (c *Client) UnassignIPv6(ctx context.Context, eni string, addrs []netip.Addr, prefixes []netip.Prefix) error {
	const action = "UnassignIpv6Addresses"
	if len(addrs)+len(prefixes) == 0 {
		return nil
	}
	in := &ec2.UnassignIpv6AddressesInput{NetworkInterfaceId: &eni, Ipv6Addresses: strs(addrs), Ipv6Prefixes: strs(prefixes)}
	out, err := call(ctx, c, action, c.ec2.UnassignIpv6Addresses, in)
	if err != nil {
		return err
	}
	changed(ctx, action, out.ResultMetadata, "eni", eni, "addrs", strings.Join(append(in.Ipv6Addresses, in.Ipv6Prefixes...), ","))
	return nil
}
