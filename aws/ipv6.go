// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"net/netip"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// AssignIPv6 assigns n more IPv6 addresses to the ENI (AssignIpv6Addresses), and returns them. If it returns an error,
// EC2 may have assigned addresses: see [Client.Assign].
func (c *Client) AssignIPv6(ctx context.Context, eni string, n int) ([]netip.Addr, error) {
	addrs, _, err := c.assignIPv6(ctx, eni, n, 0)
	return addrs, err
}

// AssignIPv6Prefixes assigns n more delegated /80 prefixes to the ENI (AssignIpv6Addresses), and returns them. If it
// returns an error, EC2 may have assigned prefixes: see [Client.Assign].
func (c *Client) AssignIPv6Prefixes(ctx context.Context, eni string, n int) ([]netip.Prefix, error) {
	_, prefixes, err := c.assignIPv6(ctx, eni, 0, n)
	return prefixes, err
}

// AssignIPv6Addr does for an IPv6 address what AssignAddr does for an IPv4 address (AssignIpv6Addresses).
func (c *Client) AssignIPv6Addr(ctx context.Context, eni string, addr netip.Addr) error {
	const action = "AssignIpv6Addresses"
	in := &ec2.AssignIpv6AddressesInput{NetworkInterfaceId: &eni, Ipv6Addresses: []string{addr.String()}}
	out, err := call(ctx, c, action, c.ec2.AssignIpv6Addresses, in)
	if err != nil {
		return err
	}
	if err := validate(action, checkSubject(eni, out.NetworkInterfaceId)); err != nil {
		return err
	}
	logChange(ctx, action, out.ResultMetadata, "eni", eni, "addrs", addr.String())
	return nil
}

// assignIPv6 assigns more addresses or more prefixes to the ENI. One of the two numbers must be 0, because EC2 does not
// allow addresses and prefixes in one call.
func (c *Client) assignIPv6(
	ctx context.Context, eni string, addresses, delegated int,
) ([]netip.Addr, []netip.Prefix, error) {
	const action = "AssignIpv6Addresses"
	in := &ec2.AssignIpv6AddressesInput{NetworkInterfaceId: &eni}
	if addresses > 0 {
		in.Ipv6AddressCount = new(int32(addresses))
	} else {
		in.Ipv6PrefixCount = new(int32(delegated))
	}
	out, err := call(ctx, c, action, c.ec2.AssignIpv6Addresses, in)
	if err != nil {
		return nil, nil, err
	}
	addrs, errAddrs := parseAll(ipv6, out.AssignedIpv6Addresses)
	prefixes, errPrefixes := parseAll(ipv6Prefix, out.AssignedIpv6Prefixes)
	err = validate(action, errAddrs, errPrefixes,
		checkCount(addresses, "addresses", addrs), checkCount(delegated, "prefixes", prefixes),
		checkSubject(eni, out.NetworkInterfaceId))
	if err != nil {
		return nil, nil, err
	}
	logChange(ctx, action, out.ResultMetadata, "eni", eni, "addrs",
		strings.Join(append(formatAll(addrs), formatAll(prefixes)...), ","))
	return addrs, prefixes, nil
}

// UnassignIPv6 removes IPv6 addresses and delegated prefixes from the ENI, in one EC2 call (UnassignIpv6Addresses).
func (c *Client) UnassignIPv6(ctx context.Context, eni string, addrs []netip.Addr, prefixes []netip.Prefix) error {
	const action = "UnassignIpv6Addresses"
	if len(addrs)+len(prefixes) == 0 {
		return nil
	}
	in := &ec2.UnassignIpv6AddressesInput{NetworkInterfaceId: &eni, Ipv6Addresses: formatAll(addrs),
		Ipv6Prefixes: formatAll(prefixes)}
	out, err := call(ctx, c, action, c.ec2.UnassignIpv6Addresses, in)
	if err != nil {
		return err
	}
	logChange(ctx, action, out.ResultMetadata, "eni", eni, "addrs",
		strings.Join(append(in.Ipv6Addresses, in.Ipv6Prefixes...), ","))
	return nil
}
