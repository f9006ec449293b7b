// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// vpcItem is a VPC on the wire (API: Vpc).
type vpcItem struct {
	ID               string                    `xml:"vpcId"`
	OwnerID          string                    `xml:"ownerId"`
	State            string                    `xml:"state"`
	CIDRBlock        netip.Prefix              `xml:"cidrBlock"`
	CIDRAssociations set[cidrBlockAssociation] `xml:"cidrBlockAssociationSet"`
	IPv6Associations set[ipv6Association]      `xml:"ipv6CidrBlockAssociationSet"`
	InstanceTenancy  string                    `xml:"instanceTenancy"`
	IsDefault        bool                      `xml:"isDefault"`
	Tags             set[tag]                  `xml:"tagSet"`
}

type cidrBlockAssociation struct {
	ID        string       `xml:"associationId"`
	CIDRBlock netip.Prefix `xml:"cidrBlock"`
	State     string       `xml:"cidrBlockState>state"`
}

// ipv6Association is an IPv6 block of a VPC or a subnet on the wire (API: VpcIpv6CidrBlockAssociation,
// SubnetIpv6CidrBlockAssociation).
type ipv6Association struct {
	ID        string       `xml:"associationId"`
	CIDRBlock netip.Prefix `xml:"ipv6CidrBlock"`
	State     string       `xml:"ipv6CidrBlockState>state"`
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

// vpcCatalogue is the catalogue of VPCs (API: DescribeVpcs).
var vpcCatalogue = catalogue[*VPC]{
	id:       func(v *VPC) string { return v.ID },
	notFound: func(id string) error { return notFound("InvalidVpcID", "vpc ID", id) },
	tags:     func(v *VPC) map[string]string { return v.Tags },
	maxPage:  1000,
	unpaged:  true,
	idParam:  "vpcIds",
}

func (s *Sim) describeVpcs(in *describeVPCsInput) (*describeVPCsOutput, error) {
	chosen, next, err := vpcCatalogue.choosePage(slices.Collect(maps.Values(s.vpcs)), in.VPCIDs, in.page)
	if err != nil {
		return nil, err
	}
	out := &describeVPCsOutput{NextToken: next}
	for _, v := range chosen {
		item := vpcItem{ID: v.ID, OwnerID: s.cfg.Account, State: "available", CIDRBlock: v.CIDRs[0],
			InstanceTenancy: "default", IsDefault: v.Default, Tags: tagSet(v.Tags)}
		for i, c := range v.blocks(netip.Addr.Is4) {
			id := fmt.Sprintf("vpc-cidr-assoc-%017x", i+1)
			item.CIDRAssociations.Items = append(item.CIDRAssociations.Items, cidrBlockAssociation{id, c, v.state(c)})
		}
		for i, c := range v.blocks(netip.Addr.Is6) {
			id := fmt.Sprintf("vpc-cidr-assoc-6%016x", i+1)
			item.IPv6Associations.Items = append(item.IPv6Associations.Items, ipv6Association{id, c, v.state(c)})
		}
		out.VPCs.Items = append(out.VPCs.Items, item)
	}
	return out, nil
}

// blocks returns the present and the former blocks of the VPC in one family.
func (v *VPC) blocks(family func(netip.Addr) bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Concat(v.CIDRs, v.IPv6CIDRs, v.FormerCIDRs),
		func(b netip.Prefix) bool { return !family(b.Addr()) })
}

// state returns the state of a block of the VPC.
func (v *VPC) state(b netip.Prefix) string {
	if slices.Contains(v.FormerCIDRs, b) {
		return "disassociated"
	}
	return "associated"
}
