// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// An ENISpec describes an ENI to create.
type ENISpec struct {
	Subnet         string
	SecurityGroups []string // none: the VPC's default group
	Description    string
	Tags           map[string]string
	Tracking       Tracking // a timeout of 0 means the default of the instance type

	// Token is the client token. A repeated call with the same ENISpec returns the same ENI, as long as EC2 remembers
	// the token. So if a process records the token and then crashes during the call, another process can repeat the
	// call. If Token is empty, CreateENI uses a random token.
	Token string

	// Secondary is the number of IPv4 addresses in addition to the primary address. Prefixes is the number of delegated
	// /28 prefixes. EC2 does not allow both Secondary and Prefixes in one call.
	Secondary, Prefixes int

	// IPv6 is the number of IPv6 addresses. IPv6Prefixes is the number of delegated /80 prefixes. EC2 does not allow
	// both IPv6 and IPv6Prefixes in one call. But a call may have one number for IPv4 and one for IPv6.
	IPv6, IPv6Prefixes int
}

// CreateENI creates an ENI with its tags (CreateNetworkInterface), and returns the ENI with all attributes.
func (c *Client) CreateENI(ctx context.Context, s ENISpec) (ENI, error) {
	const action = "CreateNetworkInterface"
	in := &ec2.CreateNetworkInterfaceInput{SubnetId: &s.Subnet, Groups: s.SecurityGroups,
		TagSpecifications:               tagSpecs(s.Tags),
		ConnectionTrackingSpecification: s.Tracking.sdkRequest()}
	if s.Description != "" {
		in.Description = &s.Description
	}
	if s.Token != "" {
		in.ClientToken = &s.Token // if nil, the SDK makes a random token, and uses it for all attempts of this call
	}
	if s.Secondary > 0 {
		in.SecondaryPrivateIpAddressCount = new(int32(s.Secondary))
	}
	if s.Prefixes > 0 {
		in.Ipv4PrefixCount = new(int32(s.Prefixes))
	}
	if s.IPv6 > 0 {
		in.Ipv6AddressCount = new(int32(s.IPv6))
	}
	if s.IPv6Prefixes > 0 {
		in.Ipv6PrefixCount = new(int32(s.IPv6Prefixes))
	}
	out, err := call(ctx, c, action, c.ec2.CreateNetworkInterface, in)
	if err != nil {
		return ENI{}, err
	}
	if out.NetworkInterface == nil {
		return ENI{}, validate(action, errors.New("it has no network interface"))
	}
	e, err := parseENI(*out.NetworkInterface)
	logChange(ctx, action, out.ResultMetadata, "eni", e.ID, "subnet", e.Subnet,
		"addrs", strings.Join(append(formatAll(e.Addrs), formatAll(e.Prefixes)...), ","))
	return e, validate(action, err, checkSubject(s.Subnet, out.NetworkInterface.SubnetId), e.checkHasAddr())
}

// checkHasAddr returns an error if the ENI has no address. EC2 gives each ENI at least one address.
func (e ENI) checkHasAddr() error {
	if len(e.Addrs)+len(e.IPv6Addrs)+len(e.IPv6Prefixes) == 0 {
		return fmt.Errorf("%s has no address", e.ID)
	}
	return nil
}

// tagSpecs converts the tags of a new ENI to the SDK's type. The tags are sorted, so that a repeated request has the
// same text.
func tagSpecs(m map[string]string) []types.TagSpecification {
	if len(m) == 0 {
		return nil
	}
	spec := types.TagSpecification{ResourceType: types.ResourceTypeNetworkInterface}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		spec.Tags = append(spec.Tags, types.Tag{Key: new(k), Value: new(m[k])})
	}
	return []types.TagSpecification{spec}
}

// DeleteENI deletes an ENI that is not attached (DeleteNetworkInterface). [ErrNotFound] means that the ENI is already
// deleted. [ErrInUse] means that the ENI is still attached.
func (c *Client) DeleteENI(ctx context.Context, eni string) error {
	const action = "DeleteNetworkInterface"
	out, err := call(ctx, c, action, c.ec2.DeleteNetworkInterface,
		&ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &eni})
	if err != nil {
		return err
	}
	logChange(ctx, action, out.ResultMetadata, "eni", eni)
	return nil
}
