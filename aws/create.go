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

// An ENISpec says what ENI to create.
type ENISpec struct {
	Subnet         string
	SecurityGroups []string // none: the VPC's default group
	Description    string
	Tags           map[string]string

	// Token makes the creation safe to repeat: the same token and the same spec give
	// the same ENI, for as long as EC2 remembers. A caller that writes it down first
	// finds its ENI again after a crash. Empty: one that is used for this call alone.
	Token string

	// Secondary is how many addresses the ENI has beside its primary one, and Prefixes
	// how many /28; EC2 allows one or the other.
	Secondary, Prefixes int

	// IPv6 is how many IPv6 addresses the ENI has, and IPv6Prefixes how many /80; EC2
	// allows one or the other, beside either of IPv4, in the same call.
	IPv6, IPv6Prefixes int
}

// CreateENI creates an ENI (CreateNetworkInterface), tags included. EC2 answers with
// all of it, so that nothing needs to be asked for again.
func (c *Client) CreateENI(ctx context.Context, s ENISpec) (ENI, error) {
	const action = "CreateNetworkInterface"
	in := &ec2.CreateNetworkInterfaceInput{SubnetId: &s.Subnet, Groups: s.SecurityGroups, TagSpecifications: tagSpecs(s.Tags)}
	if s.Description != "" {
		in.Description = &s.Description
	}
	if s.Token != "" {
		in.ClientToken = &s.Token // else the SDK's, which holds for the attempts of this call
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
		return ENI{}, disbelief(action, errors.New("it has no network interface"))
	}
	e, err := parseENI(*out.NetworkInterface)
	changed(ctx, action, out.ResultMetadata, "eni", e.ID, "subnet", e.Subnet,
		"addrs", strings.Join(append(strs(e.Addrs), strs(e.Prefixes)...), ","))
	return e, disbelief(action, err, about(s.Subnet, out.NetworkInterface.SubnetId), e.usable())
}

// usable refuses an ENI that no pod could use: EC2 gives each at least one address.
func (e ENI) usable() error {
	if len(e.Addrs)+len(e.IPv6Addrs)+len(e.IPv6Prefixes) == 0 {
		return fmt.Errorf("%s has no address", e.ID)
	}
	return nil
}

// tagSpecs are tags for an ENI, sorted, so that the same tags make the same request.
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

// DeleteENI deletes an ENI that is attached nowhere (DeleteNetworkInterface).
// [ErrNotFound] means that it is gone already, [ErrInUse] that it is still attached.
func (c *Client) DeleteENI(ctx context.Context, eni string) error {
	const action = "DeleteNetworkInterface"
	out, err := call(ctx, c, action, c.ec2.DeleteNetworkInterface, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &eni})
	if err != nil {
		return err
	}
	changed(ctx, action, out.ResultMetadata, "eni", eni)
	return nil
}
