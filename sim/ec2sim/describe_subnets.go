// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// subnetItem is a subnet on the wire (API: Subnet).
type subnetItem struct {
	ID                          string               `xml:"subnetId"`
	ARN                         string               `xml:"subnetArn"`
	State                       string               `xml:"state"`
	OwnerID                     string               `xml:"ownerId"`
	VPCID                       string               `xml:"vpcId"`
	CIDRBlock                   *netip.Prefix        `xml:"cidrBlock"`
	IPv6Associations            set[ipv6Association] `xml:"ipv6CidrBlockAssociationSet"`
	IPv6Native                  bool                 `xml:"ipv6Native"`
	AssignIPv6AddressOnCreation bool                 `xml:"assignIpv6AddressOnCreation"`
	AvailableIPAddressCount     int                  `xml:"availableIpAddressCount"`
	AvailabilityZone            string               `xml:"availabilityZone"`
	DefaultForAZ                bool                 `xml:"defaultForAz"`
	MapPublicIPOnLaunch         bool                 `xml:"mapPublicIpOnLaunch"`
	OutpostARN                  string               `xml:"outpostArn,omitempty"`
	Tags                        set[tag]             `xml:"tagSet"`
}

type describeSubnetsInput struct {
	page
	SubnetIDs []string `ec2:"SubnetId"`
}

type describeSubnetsOutput struct {
	head
	Subnets   set[subnetItem] `xml:"subnetSet"`
	NextToken string          `xml:"nextToken,omitempty"`
}

// A subnetView is a subnet as DescribeSubnets shows it, with its number of free addresses.
type subnetView struct {
	*subnet
	left int
}

// subnetCatalogue is the catalogue of subnets (API: DescribeSubnets). Some filters have two or three names.
var subnetCatalogue = catalogue[subnetView]{
	id:      func(s subnetView) string { return s.ID },
	absent:  func(id string) error { return notFound("InvalidSubnetID", "subnet ID", id) },
	tags:    func(s subnetView) map[string]string { return s.Tags },
	most:    1000,
	whole:   true,
	idParam: "subnetIds",
	fields: map[string]func(subnetView) []string{
		"availability-zone":          func(s subnetView) []string { return one(s.Zone) },
		"availabilityZone":           func(s subnetView) []string { return one(s.Zone) },
		"available-ip-address-count": func(s subnetView) []string { return one(strconv.Itoa(s.left)) },
		"cidr":                       subnetView.cidr4,
		"cidr-block":                 subnetView.cidr4,
		"cidrBlock":                  subnetView.cidr4,
		"default-for-az":             func(s subnetView) []string { return yes(s.Default) },
		"defaultForAz":               func(s subnetView) []string { return yes(s.Default) },
		"ipv6-cidr-block-association.ipv6-cidr-block": subnetView.cidr6,
		"ipv6-native":             func(s subnetView) []string { return yes(s.v4 == nil) },
		"map-public-ip-on-launch": func(s subnetView) []string { return yes(s.MapPublicIP) },
		"state":                   func(subnetView) []string { return one("available") },
		"subnet-id":               func(s subnetView) []string { return one(s.ID) },
		"vpc-id":                  func(s subnetView) []string { return one(s.VPC) },
	},
}

func (s *Sim) describeSubnets(in *describeSubnetsInput) (*describeSubnetsOutput, error) {
	var all []subnetView
	free := s.seen().free
	for id, sub := range s.subnets {
		all = append(all, subnetView{sub, free[id]})
	}
	chosen, next, err := subnetCatalogue.choose(all, in.SubnetIDs, in.page)
	if err != nil {
		return nil, err
	}
	out := &describeSubnetsOutput{NextToken: next}
	for _, sub := range chosen {
		item := subnetItem{
			ID: sub.ID,
			ARN: fmt.Sprintf("arn:aws:ec2:%s:%s:subnet/%s", s.cfg.Region,
				s.cfg.Account, sub.ID),
			State:                       "available",
			OwnerID:                     s.cfg.Account,
			VPCID:                       sub.VPC,
			IPv6Native:                  sub.v4 == nil,
			AssignIPv6AddressOnCreation: sub.AssignIPv6 || sub.v4 == nil,
			AvailableIPAddressCount:     sub.left,
			AvailabilityZone:            sub.Zone,
			DefaultForAZ:                sub.Default,
			MapPublicIPOnLaunch:         sub.MapPublicIP,
			OutpostARN:                  sub.Outpost,
			Tags:                        tagSet(sub.Tags),
		}
		if sub.v4 != nil {
			item.CIDRBlock = &sub.CIDR
		}
		if sub.v6 != nil {
			item.IPv6Associations.Items = []ipv6Association{{"subnet-cidr-assoc-" +
				strings.TrimPrefix(sub.ID, "subnet-"), sub.IPv6CIDR, "associated"}}
		}
		out.Subnets.Items = append(out.Subnets.Items, item)
	}
	return out, nil
}

// cidr4 and cidr6 return the values of a subnet for filters.
func (s subnetView) cidr4() []string { return blockText(s.CIDR) }
func (s subnetView) cidr6() []string { return blockText(s.IPv6CIDR) }

func blockText(b netip.Prefix) []string {
	if !b.IsValid() {
		return nil
	}
	return one(b.String())
}
