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

// A subnetView is a subnet as DescribeSubnets shows it. If there is a lag, the field "free" can have an old value.
type subnetView struct {
	*subnet
	free int
}

// subnetCatalogue is the catalogue of subnets (API: DescribeSubnets).
var subnetCatalogue = catalogue[subnetView]{
	id:       func(s subnetView) string { return s.ID },
	notFound: func(id string) error { return notFound("InvalidSubnetID", "subnet ID", id) },
	tags:     func(s subnetView) map[string]string { return s.Tags },
	maxPage:  1000,
	unpaged:  true,
	idParam:  "subnetIds",
	filters: map[string]func(subnetView) []string{
		"availability-zone": func(s subnetView) []string { return oneValue(s.Zone) },
		"default-for-az":    func(s subnetView) []string { return oneValue(strconv.FormatBool(s.Default)) },
		"vpc-id":            func(s subnetView) []string { return oneValue(s.VPC) },
	},
}

func (s *Sim) describeSubnets(in *describeSubnetsInput) (*describeSubnetsOutput, error) {
	var all []subnetView
	free := s.shownMoment().free
	for id, sub := range s.subnets {
		all = append(all, subnetView{sub, free[id]})
	}
	chosen, next, err := subnetCatalogue.choosePage(all, in.SubnetIDs, in.page)
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
			AvailableIPAddressCount:     sub.free,
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
