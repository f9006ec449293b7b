// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"maps"
	"slices"
)

// builtin has the instance types that every simulator has. The limits are from pkg/vpc/vpc_ip_resource_limit.go of
// aws/amazon-vpc-cni-k8s, which is generated from DescribeInstanceTypes. An instance can have as many ENIs as all its
// network cards together (Guide: "Network cards"). All these types can have as many IPv6 addresses as IPv4 addresses
// (Guide: "Maximum IP addresses per network interface"). C8gn is a type of Nitro v6 (Guide: the platform summary of the
// family).
var builtin = []InstanceType{
	nitro("t3.small", 3, 4),
	nitro("t3.medium", 3, 6),
	nitro("m5.large", 3, 10),
	nitro("m5.xlarge", 4, 15),
	nitro("m5.2xlarge", 4, 15),
	nitro("m5.4xlarge", 8, 30),
	nitro("m5.24xlarge", 15, 50),
	nitro("c5.large", 3, 10),
	nitro("c5.4xlarge", 8, 30),
	nitro("c5n.18xlarge", 15, 50),
	nitro("c6in.32xlarge", 8, 50).withCards(2),
	nitro("c8gn.48xlarge", 12, 50).withCards(2).withNitro6(),
	nitro("dl1.24xlarge", 15, 50).withCards(4),
	nitro("p4d.24xlarge", 15, 50).withCards(4),
	nitro("p5.48xlarge", 2, 50).withCards(32),
	nitro("p5en.48xlarge", 4, 50).withCards(16),
	nitro("p6-b200.48xlarge", 4, 50).withCards(8),
}

// Types returns the instance types that every simulator has.
func Types() []InstanceType { return slices.Clone(builtin) }

// nitro returns a type of the Nitro system with one network card, as most types have.
func nitro(name string, enis, addrs int) InstanceType {
	return InstanceType{Name: name, ENIs: enis, IPv4PerENI: addrs, IPv6PerENI: addrs}
}

// withCards returns the type with this number of network cards. Each card can have t.ENIs ENIs.
func (t InstanceType) withCards(cards int) InstanceType {
	t.Cards = slices.Repeat([]int{t.ENIs}, cards)
	t.ENIs *= cards
	return t
}

// cards returns, for each network card, the maximum number of ENIs.
func (t InstanceType) cards() []int {
	if len(t.Cards) == 0 {
		return []int{t.ENIs}
	}
	return t.Cards
}

// typeItem is an instance type on the wire (API: InstanceTypeInfo, NetworkInfo). It omits most fields that do not
// concern the network.
type typeItem struct {
	Name        string      `xml:"instanceType"`
	BareMetal   bool        `xml:"bareMetal"`
	Hypervisor  string      `xml:"hypervisor"`
	NetworkInfo networkInfo `xml:"networkInfo"`
}

type networkInfo struct {
	MaximumNetworkInterfaces  int                 `xml:"maximumNetworkInterfaces"`
	MaximumNetworkCards       int                 `xml:"maximumNetworkCards"`
	DefaultNetworkCardIndex   int                 `xml:"defaultNetworkCardIndex"`
	NetworkCards              set[networkCard]    `xml:"networkCards"`
	IPv4AddressesPerInterface int                 `xml:"ipv4AddressesPerInterface"`
	IPv6AddressesPerInterface int                 `xml:"ipv6AddressesPerInterface"`
	IPv6Supported             bool                `xml:"ipv6Supported"`
	Tracking                  defaultTrackingItem `xml:"connectionTrackingConfiguration"`
}

type networkCard struct {
	Index                    int `xml:"networkCardIndex"`
	MaximumNetworkInterfaces int `xml:"maximumNetworkInterfaces"`
}

type describeInstanceTypesInput struct {
	page
	InstanceTypes []string `ec2:"InstanceType"`
}

type describeInstanceTypesOutput struct {
	head
	InstanceTypes set[typeItem] `xml:"instanceTypeSet"`
	NextToken     string        `xml:"nextToken,omitempty"`
}

// typeCatalogue is the catalogue of instance types (API: DescribeInstanceTypes).
var typeCatalogue = catalogue[InstanceType]{
	id: func(t InstanceType) string { return t.Name },
	notFound: func(id string) error {
		return refuse("InvalidInstanceType", "The following supplied instance types do not exist: [%s]", id)
	},
	maxPage: 100,
}

func (s *Sim) describeInstanceTypes(in *describeInstanceTypesInput) (*describeInstanceTypesOutput, error) {
	chosen, next, err := typeCatalogue.choosePage(slices.Collect(maps.Values(s.types)), in.InstanceTypes, in.page)
	if err != nil {
		return nil, err
	}
	out := &describeInstanceTypesOutput{NextToken: next}
	for _, t := range chosen {
		item := typeItem{Name: t.Name, Hypervisor: t.hypervisor(), NetworkInfo: networkInfo{
			MaximumNetworkInterfaces:  t.ENIs,
			MaximumNetworkCards:       len(t.cards()),
			IPv4AddressesPerInterface: t.IPv4PerENI,
			IPv6AddressesPerInterface: t.IPv6PerENI,
			IPv6Supported:             t.IPv6PerENI > 0,
			Tracking:                  t.defaultTracking(),
		}}
		for i, n := range t.cards() {
			item.NetworkInfo.NetworkCards.Items = append(item.NetworkInfo.NetworkCards.Items, networkCard{i, n})
		}
		out.InstanceTypes.Items = append(out.InstanceTypes.Items, item)
	}
	return out, nil
}

func (t InstanceType) hypervisor() string {
	if t.Xen {
		return "xen"
	}
	return "nitro"
}
