// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"maps"
	"slices"
	"strconv"
)

// builtin is the instance types that every simulator knows (Guide: "Maximum IP addresses per network interface",
// "Network cards"). Config.InstanceTypes adds others.
var builtin = []InstanceType{
	{Name: "t3.small", ENIs: 3, IPv4PerENI: 4, IPv6PerENI: 4},
	{Name: "t3.medium", ENIs: 3, IPv4PerENI: 6, IPv6PerENI: 6},
	{Name: "m5.large", ENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10},
	{Name: "m5.xlarge", ENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15},
	{Name: "m5.2xlarge", ENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15},
	{Name: "m5.4xlarge", ENIs: 8, IPv4PerENI: 30, IPv6PerENI: 30},
	{Name: "m5.24xlarge", ENIs: 15, IPv4PerENI: 50, IPv6PerENI: 50},
	{Name: "c5.large", ENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10},
	{Name: "c5.4xlarge", ENIs: 8, IPv4PerENI: 30, IPv6PerENI: 30},
	{Name: "c5n.18xlarge", ENIs: 15, IPv4PerENI: 50, IPv6PerENI: 50},
	{Name: "p4d.24xlarge", ENIs: 60, IPv4PerENI: 50, IPv6PerENI: 50, Cards: []int{15, 15, 15, 15}},
}

// cards are the network interfaces that each network card takes.
func (t InstanceType) cards() []int {
	if len(t.Cards) == 0 {
		return []int{t.ENIs}
	}
	return t.Cards
}

// typeItem is an instance type on the wire, as far as its network goes (API: InstanceTypeInfo, NetworkInfo).
type typeItem struct {
	Name        string      `xml:"instanceType"`
	BareMetal   bool        `xml:"bareMetal"`
	Hypervisor  string      `xml:"hypervisor"`
	NetworkInfo networkInfo `xml:"networkInfo"`
}

type networkInfo struct {
	MaximumNetworkInterfaces  int              `xml:"maximumNetworkInterfaces"`
	MaximumNetworkCards       int              `xml:"maximumNetworkCards"`
	DefaultNetworkCardIndex   int              `xml:"defaultNetworkCardIndex"`
	NetworkCards              set[networkCard] `xml:"networkCards"`
	IPv4AddressesPerInterface int              `xml:"ipv4AddressesPerInterface"`
	IPv6AddressesPerInterface int              `xml:"ipv6AddressesPerInterface"`
	IPv6Supported             bool             `xml:"ipv6Supported"`
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

// typeCatalogue: API: DescribeInstanceTypes.
var typeCatalogue = catalogue[InstanceType]{
	id: func(t InstanceType) string { return t.Name },
	absent: func(id string) error {
		return refuse("InvalidInstanceType", "The following supplied instance types do not exist: [%s]", id)
	},
	most: 100,
	fields: map[string]func(InstanceType) []string{
		"hypervisor":    func(t InstanceType) []string { return one(t.hypervisor()) },
		"instance-type": func(t InstanceType) []string { return one(t.Name) },
		"network-info.ipv4-addresses-per-interface": func(t InstanceType) []string { return one(strconv.Itoa(t.IPv4PerENI)) },
		"network-info.ipv6-addresses-per-interface": func(t InstanceType) []string { return one(strconv.Itoa(t.IPv6PerENI)) },
		"network-info.ipv6-supported":               func(t InstanceType) []string { return yes(t.IPv6PerENI > 0) },
		"network-info.maximum-network-cards":        func(t InstanceType) []string { return one(strconv.Itoa(len(t.cards()))) },
		"network-info.maximum-network-interfaces":   func(t InstanceType) []string { return one(strconv.Itoa(t.ENIs)) },
	},
}

func (s *Sim) describeInstanceTypes(in *describeInstanceTypesInput) (*describeInstanceTypesOutput, error) {
	chosen, next, err := typeCatalogue.choose(slices.Collect(maps.Values(s.types)), in.InstanceTypes, in.page)
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
