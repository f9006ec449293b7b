// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"net/netip"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Assign assigns n more secondary private IPv4 addresses to the ENI (AssignPrivateIpAddresses), and returns these n
// addresses.
//
// This EC2 action has no client token, so a repeated call may assign more addresses. After an error for which
// [MaybeDone] returns true, EC2 may have assigned addresses. To find these addresses, the caller must compare the ENI's
// addresses before the call with those after the call.
func (c *Client) Assign(ctx context.Context, eni string, n int) ([]netip.Addr, error) {
	const action = "AssignPrivateIpAddresses"
	in := &ec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &eni, SecondaryPrivateIpAddressCount: new(int32(n))}
	out, err := call(ctx, c, action, c.ec2.AssignPrivateIpAddresses, in)
	if err != nil {
		return nil, err
	}
	addrs, err := parseAll(ipv4, fieldTexts(out.AssignedPrivateIpAddresses,
		func(a types.AssignedPrivateIpAddress) *string { return a.PrivateIpAddress }))
	err = validate(action, err, checkCount(n, "addresses", addrs), checkSubject(eni, out.NetworkInterfaceId))
	if err != nil {
		return nil, err
	}
	logChange(ctx, action, out.ResultMetadata, "eni", eni, "addrs", strings.Join(formatAll(addrs), ","))
	return addrs, nil
}

// AssignAddr assigns the address addr to the ENI as a secondary address (AssignPrivateIpAddresses). If another ENI has
// the address, AssignAddr changes nothing, and returns [ErrInUse]. It is safe to repeat the call.
func (c *Client) AssignAddr(ctx context.Context, eni string, addr netip.Addr) error {
	const action = "AssignPrivateIpAddresses"
	in := &ec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &eni, PrivateIpAddresses: []string{addr.String()}}
	out, err := call(ctx, c, action, c.ec2.AssignPrivateIpAddresses, in)
	if err != nil {
		return err
	}
	if err := validate(action, checkSubject(eni, out.NetworkInterfaceId)); err != nil {
		return err
	}
	logChange(ctx, action, out.ResultMetadata, "eni", eni, "addrs", addr.String())
	return nil
}

// AssignPrefixes assigns n more delegated /28 prefixes to the ENI (AssignPrivateIpAddresses), and returns them. If it
// returns an error, EC2 may have assigned prefixes: see [Client.Assign].
func (c *Client) AssignPrefixes(ctx context.Context, eni string, n int) ([]netip.Prefix, error) {
	const action = "AssignPrivateIpAddresses"
	in := &ec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &eni, Ipv4PrefixCount: new(int32(n))}
	out, err := call(ctx, c, action, c.ec2.AssignPrivateIpAddresses, in)
	if err != nil {
		return nil, err
	}
	prefixes, err := parseAll(ipv4Prefix, fieldTexts(out.AssignedIpv4Prefixes,
		func(p types.Ipv4PrefixSpecification) *string { return p.Ipv4Prefix }))
	err = validate(action, err, checkCount(n, "prefixes", prefixes), checkSubject(eni, out.NetworkInterfaceId))
	if err != nil {
		return nil, err
	}
	logChange(ctx, action, out.ResultMetadata, "eni", eni, "prefixes", strings.Join(formatAll(prefixes), ","))
	return prefixes, nil
}

// Unassign removes addresses from the ENI. It makes one EC2 call for all these addresses (UnassignPrivateIpAddresses).
// EC2 refuses to remove the primary address.
func (c *Client) Unassign(ctx context.Context, eni string, addrs ...netip.Addr) error {
	return c.unassign(ctx, &ec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &eni,
		PrivateIpAddresses: formatAll(addrs)})
}

// UnassignPrefixes removes delegated prefixes, with all their addresses, from the ENI. It makes one EC2 call for all
// these prefixes (UnassignPrivateIpAddresses).
func (c *Client) UnassignPrefixes(ctx context.Context, eni string, prefixes ...netip.Prefix) error {
	return c.unassign(ctx, &ec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &eni,
		Ipv4Prefixes: formatAll(prefixes)})
}

func (c *Client) unassign(ctx context.Context, in *ec2.UnassignPrivateIpAddressesInput) error {
	const action = "UnassignPrivateIpAddresses"
	what := append(in.PrivateIpAddresses, in.Ipv4Prefixes...)
	if len(what) == 0 {
		return nil
	}
	out, err := call(ctx, c, action, c.ec2.UnassignPrivateIpAddresses, in)
	if err != nil {
		return err
	}
	logChange(ctx, action, out.ResultMetadata, "eni", *in.NetworkInterfaceId, "addrs", strings.Join(what, ","))
	return nil
}
