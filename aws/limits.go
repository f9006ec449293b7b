// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"fmt"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Limits are what an instance of a type can have.
type Limits struct {
	ENIs       int    // of the instance, the boot ENI included
	IPv4PerENI int    // addresses, the primary one included; a prefix counts as one
	IPv6PerENI int    // the same, with no primary; 0 if the type has no IPv6
	Cards      []Card // by index; at least one
}

// A Card is a network card. Device indices count from 0 on each.
type Card struct {
	Index int
	ENIs  int // that fit on it
}

// Limits asks EC2 (DescribeInstanceTypes) for the limits of an instance type.
func (c *Client) Limits(ctx context.Context, instanceType string) (Limits, error) {
	const action = "DescribeInstanceTypes"
	in := &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{types.InstanceType(instanceType)}}
	out, err := call(ctx, c, action, c.ec2.DescribeInstanceTypes, in)
	if err != nil {
		return Limits{}, err
	}
	if len(out.InstanceTypes) == 0 || out.InstanceTypes[0].NetworkInfo == nil {
		return Limits{}, &Error{Action: action, Err: fmt.Errorf("%s: %w", instanceType, ErrNotFound)}
	}
	n := out.InstanceTypes[0].NetworkInfo
	l := Limits{
		ENIs:       int(sdk.ToInt32(n.MaximumNetworkInterfaces)),
		IPv4PerENI: int(sdk.ToInt32(n.Ipv4AddressesPerInterface)), // not ...PerSecondaryInterface, which belongs to another product
		IPv6PerENI: int(sdk.ToInt32(n.Ipv6AddressesPerInterface)),
	}
	for _, card := range n.NetworkCards {
		l.Cards = append(l.Cards, Card{int(sdk.ToInt32(card.NetworkCardIndex)), int(sdk.ToInt32(card.MaximumNetworkInterfaces))})
	}
	if len(l.Cards) == 0 {
		l.Cards = []Card{{ENIs: l.ENIs}}
	}
	return l, nil
}
