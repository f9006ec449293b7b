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
	ENIs int // maximum number of ENIs of the instance, including the boot ENI and EFA-only ENIs
	// maximum number of IPv4 addresses of an ENI, including the primary one; a prefix counts as one address
	IPv4PerENI int
	// maximum number of IPv6 addresses of an ENI; a prefix counts as one address; 0 if the type has no IPv6
	IPv6PerENI int
	NoPrefixes bool // the type is not a Nitro type: EC2 delegates no prefixes to its ENIs
	// for each network card, the maximum number of ENIs that can have addresses; the card's index is the index in this
	// slice; there is at least one card
	Cards []int

	// TCPEstablished is the default of [Tracking].TCPEstablished for this instance type. It is 0 if EC2 does not report
	// the default.
	TCPEstablished int
}

// PodENIs returns how many ENIs an instance can have for pods. It does not count device index 0 of any card. On the
// first card, this index is for the boot ENI. On other cards, EC2 recommends it for an EFA-only ENI (EC2 user guide,
// "Maximize network bandwidth on Amazon EC2 instances with multiple network cards"). Also, metadata shows the device
// index 0 for an ENI whose true index it does not know yet.
func (l Limits) PodENIs() int {
	n := 0
	for _, enis := range l.Cards {
		n += max(enis-1, 0)
	}
	return min(n, l.ENIs-1)
}

// Limits returns the limits of an instance type (DescribeInstanceTypes).
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
	answered := string(out.InstanceTypes[0].InstanceType)
	if err := validate(action, err, checkSubject(instanceType, &answered)); err != nil {
		return Limits{}, err
	}
	l.NoPrefixes = out.InstanceTypes[0].Hypervisor == types.InstanceTypeHypervisorXen
	return l, nil
}

// parseLimits converts limits from the SDK's type, and validates them. It ignores the fields whose names end with
// PerSecondaryInterface, which are about another product of AWS. For an instance type without IPv6, EC2 may omit the
// number of IPv6 addresses.
func parseLimits(n *types.NetworkInfo) (l Limits, err error) {
	var errs [5]error
	l.ENIs, errs[0] = parseNumber("the number of ENIs", n.MaximumNetworkInterfaces, 1, maxENIs)
	l.IPv4PerENI, errs[1] = parseNumber("the number of IPv4 addresses", n.Ipv4AddressesPerInterface, 1, maxAddrs)
	if n.Ipv6AddressesPerInterface != nil {
		l.IPv6PerENI, errs[2] = parseNumber("the number of IPv6 addresses", n.Ipv6AddressesPerInterface, 0, maxAddrs)
	}
	l.Cards, errs[3] = parseCards(n.NetworkCards)
	if len(l.Cards) == 0 {
		l.Cards = []int{l.ENIs}
	}
	if c := n.ConnectionTrackingConfiguration; c != nil {
		l.TCPEstablished, errs[4] = parseTimeout("TCP connections", c.DefaultTcpEstablishedTimeout)
	}
	return l, errors.Join(errs[:]...)
}

// parseCards returns the field Cards of [Limits]. It does not count AdditionalFlexibleNetworkInterfaces. Those ENIs
// have fewer queues, and this suite does not create them.
func parseCards(infos []types.NetworkCardInfo) (cards []int, err error) {
	for _, c := range infos {
		i, err := parseNumber("the index of a network card", c.NetworkCardIndex, 0, maxCards-1)
		if err != nil {
			return nil, err
		}
		n, err := parseNumber("the number of ENIs of a network card", c.MaximumNetworkInterfaces, 0, maxENIs)
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
