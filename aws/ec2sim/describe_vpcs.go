// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
)

// vpcItem is a VPC on the wire (API: Vpc).
type vpcItem struct {
	ID               string                    `xml:"vpcId"`
	OwnerID          string                    `xml:"ownerId"`
	State            string                    `xml:"state"`
	CIDRBlock        netip.Prefix              `xml:"cidrBlock"`
	CIDRAssociations set[cidrBlockAssociation] `xml:"cidrBlockAssociationSet"`
	InstanceTenancy  string                    `xml:"instanceTenancy"`
	IsDefault        bool                      `xml:"isDefault"`
	Tags             set[tag]                  `xml:"tagSet"`
}

type cidrBlockAssociation struct {
	ID        string       `xml:"associationId"`
	CIDRBlock netip.Prefix `xml:"cidrBlock"`
	State     string       `xml:"cidrBlockState>state"`
}

type describeVPCsInput struct {
	page
	VPCIDs []string `ec2:"VpcId"`
}

type describeVPCsOutput struct {
	head
	VPCs      set[vpcItem] `xml:"vpcSet"`
	NextToken string       `xml:"nextToken,omitempty"`
}

// vpcCatalogue: API: DescribeVpcs.
var vpcCatalogue = catalogue[*VPC]{
	id:      func(v *VPC) string { return v.ID },
	absent:  func(id string) error { return notFound("InvalidVpcID", "vpc ID", id) },
	tags:    func(v *VPC) map[string]string { return v.Tags },
	most:    1000,
	whole:   true,
	idParam: "vpcIds",
	fields: map[string]func(*VPC) []string{
		"cidr":                              func(v *VPC) []string { return one(v.CIDRs[0].String()) },
		"cidr-block-association.cidr-block": func(v *VPC) []string { return texts(append(slices.Clone(v.CIDRs), v.FormerCIDRs...)) },
		"is-default":                        func(v *VPC) []string { return yes(v.Default) },
		"state":                             func(*VPC) []string { return one("available") },
		"vpc-id":                            func(v *VPC) []string { return one(v.ID) },
	},
}

func (s *Sim) describeVpcs(in *describeVPCsInput) (*describeVPCsOutput, error) {
	chosen, next, err := vpcCatalogue.choose(slices.Collect(maps.Values(s.vpcs)), in.VPCIDs, in.page)
	if err != nil {
		return nil, err
	}
	out := &describeVPCsOutput{NextToken: next}
	for _, v := range chosen {
		item := vpcItem{ID: v.ID, OwnerID: s.cfg.Account, State: "available", CIDRBlock: v.CIDRs[0],
			InstanceTenancy: "default", IsDefault: v.Default, Tags: tagSet(v.Tags)}
		for i, c := range append(slices.Clone(v.CIDRs), v.FormerCIDRs...) {
			state := "associated"
			if i >= len(v.CIDRs) {
				state = "disassociated"
			}
			id := fmt.Sprintf("vpc-cidr-assoc-%017x", i+1)
			item.CIDRAssociations.Items = append(item.CIDRAssociations.Items, cidrBlockAssociation{id, c, state})
		}
		out.VPCs.Items = append(out.VPCs.Items, item)
	}
	return out, nil
}

// subnetItem is a subnet on the wire (API: Subnet).
type subnetItem struct {
	ID                      string       `xml:"subnetId"`
	ARN                     string       `xml:"subnetArn"`
	State                   string       `xml:"state"`
	OwnerID                 string       `xml:"ownerId"`
	VPCID                   string       `xml:"vpcId"`
	CIDRBlock               netip.Prefix `xml:"cidrBlock"`
	AvailableIPAddressCount int          `xml:"availableIpAddressCount"`
	AvailabilityZone        string       `xml:"availabilityZone"`
	DefaultForAZ            bool         `xml:"defaultForAz"`
	MapPublicIPOnLaunch     bool         `xml:"mapPublicIpOnLaunch"`
	Tags                    set[tag]     `xml:"tagSet"`
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

// subnetCatalogue: API: DescribeSubnets. Some filters have two or three names.
var subnetCatalogue = catalogue[*subnet]{
	id:      func(s *subnet) string { return s.ID },
	absent:  func(id string) error { return notFound("InvalidSubnetID", "subnet ID", id) },
	tags:    func(s *subnet) map[string]string { return s.Tags },
	most:    1000,
	whole:   true,
	idParam: "subnetIds",
	fields: map[string]func(*subnet) []string{
		"availability-zone":          func(s *subnet) []string { return one(s.Zone) },
		"availabilityZone":           func(s *subnet) []string { return one(s.Zone) },
		"available-ip-address-count": func(s *subnet) []string { return one(strconv.Itoa(s.pool.free)) },
		"cidr":                       func(s *subnet) []string { return one(s.CIDR.String()) },
		"cidr-block":                 func(s *subnet) []string { return one(s.CIDR.String()) },
		"cidrBlock":                  func(s *subnet) []string { return one(s.CIDR.String()) },
		"default-for-az":             func(s *subnet) []string { return yes(s.Default) },
		"defaultForAz":               func(s *subnet) []string { return yes(s.Default) },
		"map-public-ip-on-launch":    func(s *subnet) []string { return yes(s.MapPublicIP) },
		"state":                      func(*subnet) []string { return one("available") },
		"subnet-id":                  func(s *subnet) []string { return one(s.ID) },
		"vpc-id":                     func(s *subnet) []string { return one(s.VPC) },
	},
}

func (s *Sim) describeSubnets(in *describeSubnetsInput) (*describeSubnetsOutput, error) {
	chosen, next, err := subnetCatalogue.choose(slices.Collect(maps.Values(s.subnets)), in.SubnetIDs, in.page)
	if err != nil {
		return nil, err
	}
	out := &describeSubnetsOutput{NextToken: next}
	for _, sub := range chosen {
		out.Subnets.Items = append(out.Subnets.Items, subnetItem{
			ID:                      sub.ID,
			ARN:                     fmt.Sprintf("arn:aws:ec2:%s:%s:subnet/%s", s.cfg.Region, s.cfg.Account, sub.ID),
			State:                   "available",
			OwnerID:                 s.cfg.Account,
			VPCID:                   sub.VPC,
			CIDRBlock:               sub.CIDR,
			AvailableIPAddressCount: sub.pool.free,
			AvailabilityZone:        sub.Zone,
			DefaultForAZ:            sub.Default,
			MapPublicIPOnLaunch:     sub.MapPublicIP,
			Tags:                    tagSet(sub.Tags),
		})
	}
	return out, nil
}
