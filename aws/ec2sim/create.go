// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"net/netip"
	"reflect"
	"slices"
)

type createNetworkInterfaceInput struct {
	ClientToken                    string             `ec2:"ClientToken"`
	Description                    string             `ec2:"Description"`
	InterfaceType                  string             `ec2:"InterfaceType"`
	IPv4PrefixCount                int                `ec2:"Ipv4PrefixCount"`
	IPv4Prefixes                   []prefixRequest    `ec2:"Ipv4Prefix"`
	PrivateIPAddress               netip.Addr         `ec2:"PrivateIpAddress"`
	PrivateIPAddresses             []addressRequest   `ec2:"PrivateIpAddresses"`
	SecondaryPrivateIPAddressCount int                `ec2:"SecondaryPrivateIpAddressCount"`
	SecurityGroupIDs               []string           `ec2:"SecurityGroupId"`
	SubnetID                       string             `ec2:"SubnetId,required"`
	TagSpecifications              []tagSpecification `ec2:"TagSpecification"`
}

type prefixRequest struct {
	Prefix netip.Prefix `ec2:"Ipv4Prefix,required"`
}

type addressRequest struct {
	Address netip.Addr `ec2:"PrivateIpAddress,required"`
	Primary bool       `ec2:"Primary"`
}

type tagSpecification struct {
	ResourceType string `ec2:"ResourceType"`
	Tags         []tag  `ec2:"Tag"`
}

type createNetworkInterfaceOutput struct {
	head
	NetworkInterface *networkInterface `xml:"networkInterface"`
	ClientToken      string            `xml:"clientToken,omitempty"`
}

// created is what a client token has made.
type created struct {
	in  createNetworkInterfaceInput
	out createNetworkInterfaceOutput
}

// createNetworkInterface makes an ENI (API: CreateNetworkInterface). The same token with the same parameters makes
// nothing, and gets the first answer again; with others it is an error (API: "Ensuring idempotency").
func (s *Sim) createNetworkInterface(in *createNetworkInterfaceInput) (*createNetworkInterfaceOutput, error) {
	if first, ok := s.tokens[in.ClientToken]; ok {
		if !reflect.DeepEqual(first.in, *in) {
			return nil, refuse("IdempotentParameterMismatch",
				"The client token you have provided is associated with a resource you are already using with different parameters.")
		}
		return new(first.out), nil
	}
	e, err := s.create(in)
	if err != nil {
		return nil, err
	}
	shown := s.describe(e)
	shown.Status = "pending" // API: CreateNetworkInterface, the example; describes say "available"
	out := &createNetworkInterfaceOutput{NetworkInterface: shown, ClientToken: in.ClientToken}
	if in.ClientToken != "" {
		s.tokens[in.ClientToken] = created{*in, *out}
	}
	return out, nil
}

func (s *Sim) create(in *createNetworkInterfaceInput) (*eni, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	sub, err := s.subnet(in.SubnetID)
	if err != nil {
		return nil, err
	}
	groups, err := s.groups(in.SecurityGroupIDs)
	if err != nil {
		return nil, err
	}
	tags, err := s.tagsAtCreation(in.TagSpecifications)
	if err != nil {
		return nil, err
	}
	primary, others := in.addresses()
	if 1+len(others)+in.SecondaryPrivateIPAddressCount+len(in.IPv4Prefixes)+in.IPv4PrefixCount > s.maxIPv4 {
		return nil, tooManyAddresses()
	}
	as, err := sub.takeFirst(primary, others, in.SecondaryPrivateIPAddressCount)
	if err != nil {
		return nil, err
	}
	prefixes, err := sub.takePrefixes(in.prefixes(), in.IPv4PrefixCount)
	if err != nil {
		sub.pool.give(singles(as)...)
		return nil, atCreation(err)
	}
	e := s.newENI(sub, groups, as, prefixes)
	e.description, e.tags = in.Description, tags
	return e, nil
}

// check refuses what cannot be asked together: of a list of addresses, a count of addresses, a list of prefixes and a
// count of prefixes one at most, and one primary address (API: CreateNetworkInterface, the parameters).
func (in *createNetworkInterfaceInput) check() error {
	others := slices.DeleteFunc(slices.Clone(in.PrivateIPAddresses), func(a addressRequest) bool { return a.Primary })
	primaries := len(in.PrivateIPAddresses) - len(others)
	if in.PrivateIPAddress.IsValid() {
		primaries++
	}
	switch {
	case in.InterfaceType != "" && in.InterfaceType != "interface":
		return invalid(in.InterfaceType, "interfaceType", "The simulator makes plain interfaces only.")
	case in.SecondaryPrivateIPAddressCount < 0:
		return invalid(in.SecondaryPrivateIPAddressCount, "secondaryPrivateIpAddressCount", "It must not be negative.")
	case in.IPv4PrefixCount < 0:
		return invalid(in.IPv4PrefixCount, "ipv4PrefixCount", "It must not be negative.")
	case several(len(others) > 0, in.SecondaryPrivateIPAddressCount > 0, len(in.IPv4Prefixes) > 0, in.IPv4PrefixCount > 0):
		return refuse("InvalidParameterCombination",
			"Only one of private IP addresses, their count, IPv4 prefixes and their count can be specified.")
	case primaries > 1:
		return refuse("InvalidParameterCombination", "Only one primary private IP address can be specified.")
	}
	return nil
}

// several says whether more than one is given.
func several(given ...bool) bool {
	n := 0
	for _, g := range given {
		if g {
			n++
		}
	}
	return n > 1
}

// addresses are the primary address that was asked for, if any, and the others.
func (in *createNetworkInterfaceInput) addresses() (primary netip.Addr, others []netip.Addr) {
	primary = in.PrivateIPAddress
	for _, a := range in.PrivateIPAddresses {
		if a.Primary {
			primary = a.Address
		} else {
			others = append(others, a.Address)
		}
	}
	return primary, others
}

func (in *createNetworkInterfaceInput) prefixes() []netip.Prefix {
	var ps []netip.Prefix
	for _, p := range in.IPv4Prefixes {
		ps = append(ps, p.Prefix)
	}
	return ps
}

type deleteNetworkInterfaceInput struct {
	NetworkInterfaceID string `ec2:"NetworkInterfaceId,required"`
}

// deleteNetworkInterface deletes an ENI that is attached nowhere (API: DeleteNetworkInterface). For one that is, the
// API's error codes name both InvalidNetworkInterface.InUse and InvalidParameterValue; in practice it is the second.
func (s *Sim) deleteNetworkInterface(in *deleteNetworkInterfaceInput) (*done, error) {
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	if e.attachment != nil {
		return nil, refuse("InvalidParameterValue", "Network interface '%s' is currently in use.", e.id)
	}
	s.drop(e)
	return &done{Return: true}, nil
}
