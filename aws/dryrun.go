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

// A Target names the objects in DryRun's request. A policy may allow an action only for some objects. So the result of
// DryRun is valid only for the Target and for similar objects.
type Target struct {
	ENI            string
	Attachment     string // ID of the ENI's attachment
	Instance       string
	Subnet         string
	SecurityGroups []string
	Tags           map[string]string // tags of a new ENI; with tags, the caller also needs ec2:CreateTags
}

// DryRun asks EC2 whether this process's credentials ("the caller") have the permission for an action on a Target. EC2
// does not carry out the action. The result nil means yes. An error that matches [ErrDenied] means no, and has EC2's
// reason. Any other error proves nothing. DryRun supports all actions that the methods of a Client call.
//
// Four of these actions have no parameter DryRun: AssignPrivateIpAddresses, UnassignPrivateIpAddresses,
// AssignIpv6Addresses and UnassignIpv6Addresses (API reference). For these actions, DryRun sends a real request with an
// address of the documentation ranges (RFC 5737, RFC 3849). EC2 must refuse this address. If EC2's refusal is about the
// address, the caller has the permission.
func (c *Client) DryRun(ctx context.Context, action string, on Target) error {
	addr, addr6 := []string{"192.0.2.1"}, []string{"2001:db8::1"}
	yes := new(true)
	switch action {
	case "AssignPrivateIpAddresses":
		return refusedCall(ctx, c, action, c.ec2.AssignPrivateIpAddresses,
			&ec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &on.ENI, PrivateIpAddresses: addr})
	case "UnassignPrivateIpAddresses":
		return refusedCall(ctx, c, action, c.ec2.UnassignPrivateIpAddresses,
			&ec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &on.ENI, PrivateIpAddresses: addr})
	case "AssignIpv6Addresses":
		return refusedCall(ctx, c, action, c.ec2.AssignIpv6Addresses,
			&ec2.AssignIpv6AddressesInput{NetworkInterfaceId: &on.ENI, Ipv6Addresses: addr6})
	case "UnassignIpv6Addresses":
		return refusedCall(ctx, c, action, c.ec2.UnassignIpv6Addresses,
			&ec2.UnassignIpv6AddressesInput{NetworkInterfaceId: &on.ENI, Ipv6Addresses: addr6})
	case "CreateNetworkInterface":
		return dryCall(ctx, c, action, c.ec2.CreateNetworkInterface, &ec2.CreateNetworkInterfaceInput{
			DryRun: yes, SubnetId: &on.Subnet, Groups: on.SecurityGroups, TagSpecifications: tagSpecs(on.Tags)})
	case "AttachNetworkInterface":
		return dryCall(ctx, c, action, c.ec2.AttachNetworkInterface, &ec2.AttachNetworkInterfaceInput{
			DryRun: yes, NetworkInterfaceId: &on.ENI, InstanceId: &on.Instance, DeviceIndex: new(int32(1))})
	case "ModifyNetworkInterfaceAttribute":
		changes := &types.NetworkInterfaceAttachmentChanges{AttachmentId: &on.Attachment, DeleteOnTermination: yes}
		return dryCall(ctx, c, action, c.ec2.ModifyNetworkInterfaceAttribute,
			&ec2.ModifyNetworkInterfaceAttributeInput{DryRun: yes, NetworkInterfaceId: &on.ENI, Attachment: changes})
	case "DetachNetworkInterface":
		return dryCall(ctx, c, action, c.ec2.DetachNetworkInterface, &ec2.DetachNetworkInterfaceInput{DryRun: yes,
			AttachmentId: &on.Attachment})
	case "DeleteNetworkInterface":
		return dryCall(ctx, c, action, c.ec2.DeleteNetworkInterface, &ec2.DeleteNetworkInterfaceInput{DryRun: yes,
			NetworkInterfaceId: &on.ENI})
	}
	return c.dryDescribe(ctx, action)
}

// dryDescribe does the work of DryRun for the actions that change nothing.
func (c *Client) dryDescribe(ctx context.Context, action string) error {
	yes := new(true)
	switch action {
	case "DescribeNetworkInterfaces":
		return dryCall(ctx, c, action, c.ec2.DescribeNetworkInterfaces,
			&ec2.DescribeNetworkInterfacesInput{DryRun: yes, MaxResults: new(int32(pageSize))})
	case "DescribeInstances":
		return dryCall(ctx, c, action, c.ec2.DescribeInstances, &ec2.DescribeInstancesInput{DryRun: yes})
	case "DescribeSubnets":
		return dryCall(ctx, c, action, c.ec2.DescribeSubnets, &ec2.DescribeSubnetsInput{DryRun: yes})
	case "DescribeVpcs":
		return dryCall(ctx, c, action, c.ec2.DescribeVpcs, &ec2.DescribeVpcsInput{DryRun: yes})
	case "DescribeVpcPeeringConnections":
		return dryCall(ctx, c, action, c.ec2.DescribeVpcPeeringConnections,
			&ec2.DescribeVpcPeeringConnectionsInput{DryRun: yes})
	case "DescribeInstanceTypes":
		return dryCall(ctx, c, action, c.ec2.DescribeInstanceTypes, &ec2.DescribeInstanceTypesInput{DryRun: yes})
	}
	return &Error{Action: action, Err: errors.New("this action has no dry run")}
}

// dryCall makes a call whose request has DryRun set, so that EC2 only checks the permissions (API reference, DryRun:
// "If you have the required permissions, the error response is DryRunOperation").
func dryCall[I, O any](ctx context.Context, c *Client, action string, f method[I, O], in *I) error {
	_, err := call(ctx, c, action, f, in)
	if e, ok := errors.AsType[*Error](err); ok && e.Code == "DryRunOperation" {
		return nil
	}
	return notDoneError(action, err)
}

// inconclusive is the list of the errors that do not prove the permission. For example, EC2 may look for the ENI before
// it checks the permission.
var inconclusive = []error{ErrDenied, ErrNotFound, ErrThrottled, ErrTransient}

// refusedCall makes a call that EC2 must refuse. It returns nil if EC2's error proves the permission. An error with a
// code proves the permission, unless the variable inconclusive lists the error.
func refusedCall[I, O any](ctx context.Context, c *Client, action string, f method[I, O], in *I) error {
	_, err := call(ctx, c, action, f, in)
	if e, ok := errors.AsType[*Error](err); ok && e.Code != "" && !slices.ContainsFunc(inconclusive, e.Is) {
		return nil
	}
	return notDoneError(action, err)
}

// notDoneError returns err, which is the result of a call that EC2 must not carry out. If err is nil, EC2 has carried
// out the call, and notDoneError returns an error that says so.
func notDoneError(action string, err error) error {
	if err == nil {
		return &Error{Action: action, Err: errors.New("EC2 carried out the call instead of a dry run")}
	}
	return err
}
