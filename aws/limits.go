// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Limits are the network limits of an instance type.
type Limits struct {
	ENIs       int  // maximum for the instance, including the boot ENI and EFA-only ENIs
	IPv4PerENI int  // addresses, including the primary address; a prefix counts as one address
	IPv6PerENI int  // IPv6 addresses; a prefix counts as one address; 0 if the type has no IPv6
	NoPrefixes bool // the type is not a Nitro type: EC2 delegates no prefixes to its ENIs
	// maximum number of ENIs of each network card, by the card's index. It is 0 if the card takes no ENIs with
	// addresses. There is at least one card.
	Cards []int

	// TCPEstablished is the number of seconds after which EC2 no longer tracks an idle TCP connection. It is the
	// default for an ENI that does not set this timeout (see [Tracking]). It is 0 if EC2 does not say.
	TCPEstablished int
}

// PodENIs returns how many ENIs an instance can have for pods. PodENIs does not count the ENIs at device index 0: the
// boot ENI on the first card, and one ENI on each other card. On each of these other cards, an EFA-only ENI should be
// at device index 0, and an ENA interface at device index 1. The source is the EC2 user guide, "Maximize network
// bandwidth on Amazon EC2 instances with multiple network cards". Metadata also shows 0 for an ENI whose device index
// it does not know yet.
func (l Limits) PodENIs() int {
	n := 0
	for _, enis := range l.Cards {
		n += max(enis-1, 0)
	}
	return min(n, l.ENIs-1)
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
	l, err := parseLimits(out.InstanceTypes[0].NetworkInfo)
	if err := validate(action, err, about(instanceType, new(string(out.InstanceTypes[0].InstanceType)))); err != nil {
		return Limits{}, err
	}
	l.NoPrefixes = out.InstanceTypes[0].Hypervisor == types.InstanceTypeHypervisorXen
	return l, nil
}

// parseLimits parses the limits. It ignores the fields whose names end with PerSecondaryInterface, because they belong
// to another product. For a type without IPv6, EC2 may omit the number of IPv6 addresses.
func parseLimits(n *types.NetworkInfo) (l Limits, err error) {
	var errs [5]error
	l.ENIs, errs[0] = number("the number of ENIs", n.MaximumNetworkInterfaces, 1, maxENIs)
	l.IPv4PerENI, errs[1] = number("the number of IPv4 addresses", n.Ipv4AddressesPerInterface, 1, maxAddrs)
	if n.Ipv6AddressesPerInterface != nil {
		l.IPv6PerENI, errs[2] = number("the number of IPv6 addresses", n.Ipv6AddressesPerInterface, 0, maxAddrs)
	}
	l.Cards, errs[3] = parseCards(n.NetworkCards)
	if len(l.Cards) == 0 {
		l.Cards = []int{l.ENIs}
	}
	if c := n.ConnectionTrackingConfiguration; c != nil {
		l.TCPEstablished, errs[4] = timeout("TCP connections", c.DefaultTcpEstablishedTimeout)
	}
	return l, errors.Join(errs[:]...)
}

// parseCards returns how many ENIs fit on each card, by index. It does not count additional ENIs with fewer queues
// (AdditionalFlexibleNetworkInterfaces). The ENIs of this suite have the usual number of queues.
func parseCards(infos []types.NetworkCardInfo) (cards []int, err error) {
	for _, c := range infos {
		i, err := number("the index of a network card", c.NetworkCardIndex, 0, maxCards-1)
		if err != nil {
			return nil, err
		}
		n, err := number("the number of ENIs of a network card", c.MaximumNetworkInterfaces, 0, maxENIs)
		if err != nil {
			return nil, err
		}
		if len(c.InterfaceTypes) > 0 && !slices.Contains(c.InterfaceTypes, types.NetworkCardInterfaceTypeInterface) {
			n = 0 // the card is for EFA only
		}
		cards = append(cards, make([]int, max(i+1-len(cards), 0))...)
		cards[i] = n
	}
	return cards, nil
}
