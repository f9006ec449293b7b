// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A Target is what an action that DryRun asks about would be done to. A policy may allow
// an action on some things and not on others, an ENI with certain tags for instance: the
// answer holds for things like the target.
type Target struct {
	ENI            string
	Attachment     string // of the ENI
	Instance       string
	Subnet         string
	SecurityGroups []string
	Tags           map[string]string // of an ENI that is created, which need ec2:CreateTags as well
}

// DryRun asks EC2 whether the caller is allowed to take an action on the target, and does
// nothing. It is nil if so; an error that matches [ErrDenied], with EC2's reason, if not;
// any other error leaves it open. The actions are those of the methods of a Client.
//
// Four of them cannot be run dry (API reference: AssignPrivateIpAddresses,
// AssignIpv6Addresses and what takes back from them have no parameter DryRun). These are
// tried with an address of the documentation ranges (RFC 5737, RFC 3849), which EC2 has to
// refuse: whoever is told that the address is wrong was allowed to ask.
func (c *Client) DryRun(ctx context.Context, action string, on Target) error {
	addr, addr6 := []string{"192.0.2.1"}, []string{"2001:db8::1"}
	yes := new(true)
	switch action {
	case "AssignPrivateIpAddresses":
		return attempt(ctx, c, action, c.ec2.AssignPrivateIpAddresses,
			&ec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &on.ENI, PrivateIpAddresses: addr})
	case "UnassignPrivateIpAddresses":
		return attempt(ctx, c, action, c.ec2.UnassignPrivateIpAddresses,
			&ec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &on.ENI, PrivateIpAddresses: addr})
	case "AssignIpv6Addresses":
		return attempt(ctx, c, action, c.ec2.AssignIpv6Addresses,
			&ec2.AssignIpv6AddressesInput{NetworkInterfaceId: &on.ENI, Ipv6Addresses: addr6})
	case "UnassignIpv6Addresses":
		return attempt(ctx, c, action, c.ec2.UnassignIpv6Addresses,
			&ec2.UnassignIpv6AddressesInput{NetworkInterfaceId: &on.ENI, Ipv6Addresses: addr6})
	case "CreateNetworkInterface":
		return dry(ctx, c, action, c.ec2.CreateNetworkInterface, &ec2.CreateNetworkInterfaceInput{
			DryRun: yes, SubnetId: &on.Subnet, Groups: on.SecurityGroups, TagSpecifications: tagSpecs(on.Tags)})
	case "AttachNetworkInterface":
		return dry(ctx, c, action, c.ec2.AttachNetworkInterface, &ec2.AttachNetworkInterfaceInput{
			DryRun: yes, NetworkInterfaceId: &on.ENI, InstanceId: &on.Instance, DeviceIndex: new(int32(1))})
	case "ModifyNetworkInterfaceAttribute":
		changes := &types.NetworkInterfaceAttachmentChanges{AttachmentId: &on.Attachment, DeleteOnTermination: yes}
		return dry(ctx, c, action, c.ec2.ModifyNetworkInterfaceAttribute,
			&ec2.ModifyNetworkInterfaceAttributeInput{DryRun: yes, NetworkInterfaceId: &on.ENI, Attachment: changes})
	case "DetachNetworkInterface":
		return dry(ctx, c, action, c.ec2.DetachNetworkInterface, &ec2.DetachNetworkInterfaceInput{DryRun: yes, AttachmentId: &on.Attachment})
	case "DeleteNetworkInterface":
		return dry(ctx, c, action, c.ec2.DeleteNetworkInterface, &ec2.DeleteNetworkInterfaceInput{DryRun: yes, NetworkInterfaceId: &on.ENI})
	}
	return c.dryDescribe(ctx, action)
}

// dryDescribe is DryRun of the actions that only look.
func (c *Client) dryDescribe(ctx context.Context, action string) error {
	yes := new(true)
	switch action {
	case "DescribeNetworkInterfaces":
		return dry(ctx, c, action, c.ec2.DescribeNetworkInterfaces, &ec2.DescribeNetworkInterfacesInput{DryRun: yes, MaxResults: new(int32(pageSize))})
	case "DescribeSubnets":
		return dry(ctx, c, action, c.ec2.DescribeSubnets, &ec2.DescribeSubnetsInput{DryRun: yes})
	case "DescribeVpcs":
		return dry(ctx, c, action, c.ec2.DescribeVpcs, &ec2.DescribeVpcsInput{DryRun: yes})
	case "DescribeVpcPeeringConnections":
		return dry(ctx, c, action, c.ec2.DescribeVpcPeeringConnections, &ec2.DescribeVpcPeeringConnectionsInput{DryRun: yes})
	case "DescribeInstanceTypes":
		return dry(ctx, c, action, c.ec2.DescribeInstanceTypes, &ec2.DescribeInstanceTypesInput{DryRun: yes})
	}
	return &Error{Action: action, Err: errors.New("there is no dry run of it")}
}

// dry makes a call that ends where the work would begin (API reference, DryRun: "If you
// have the required permissions, the error response is DryRunOperation").
func dry[I, O any](ctx context.Context, c *Client, action string, f method[I, O], in *I) error {
	_, err := call(ctx, c, action, f, in)
	if e, ok := errors.AsType[*Error](err); ok && e.Code == "DryRunOperation" {
		return nil
	}
	return wasNot(action, err)
}

// open are the refusals that do not say that the caller was allowed to ask.
var open = []error{ErrDenied, ErrNotFound, ErrThrottled, ErrTransient}

// attempt makes a call that EC2 must refuse for another reason, if not for want of
// permission. It would be no answer that the ENI is not found: EC2 may look for it first.
func attempt[I, O any](ctx context.Context, c *Client, action string, f method[I, O], in *I) error {
	_, err := call(ctx, c, action, f, in)
	if e, ok := errors.AsType[*Error](err); ok && e.Code != "" && !slices.ContainsFunc(open, e.Is) {
		return nil
	}
	return wasNot(action, err)
}

// wasNot is err, or that the call was made in earnest, which should be impossible.
func wasNot(action string, err error) error {
	if err == nil {
		return &Error{Action: action, Err: errors.New("EC2 did it, in place of a dry run")}
	}
	return err
}
