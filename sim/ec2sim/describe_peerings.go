// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"net/netip"
	"slices"
)

// peeringItem is a VPC peering connection on the wire (API: VpcPeeringConnection).
type peeringItem struct {
	ID        string   `xml:"vpcPeeringConnectionId"`
	Requester peerItem `xml:"requesterVpcInfo"`
	Accepter  peerItem `xml:"accepterVpcInfo"`
	Code      string   `xml:"status>code"`
	Message   string   `xml:"status>message"`
	Tags      set[tag] `xml:"tagSet"`
}

type peerItem struct {
	OwnerID    string          `xml:"ownerId"`
	VPCID      string          `xml:"vpcId"`
	Region     string          `xml:"region"`
	CIDRBlock  *netip.Prefix   `xml:"cidrBlock"`
	CIDRBlocks *set[cidrBlock] `xml:"cidrBlockSet"`
	IPv6Blocks *set[ipv6Block] `xml:"ipv6CidrBlockSet"`
}

type cidrBlock struct {
	CIDRBlock netip.Prefix `xml:"cidrBlock"`
}

type ipv6Block struct {
	CIDRBlock netip.Prefix `xml:"ipv6CidrBlock"`
}

type describePeeringsInput struct {
	page
	PeeringIDs []string `ec2:"VpcPeeringConnectionId"`
}

type describePeeringsOutput struct {
	head
	Peerings  set[peeringItem] `xml:"vpcPeeringConnectionSet"`
	NextToken string           `xml:"nextToken,omitempty"`
}

// peeringCatalogue is the catalogue of peerings (API: DescribeVpcPeeringConnections).
var peeringCatalogue = catalogue[Peering]{
	id:       func(p Peering) string { return p.ID },
	notFound: func(id string) error { return notFound("InvalidVpcPeeringConnectionID", "vpcPeeringConnection ID", id) },
	tags:     func(p Peering) map[string]string { return p.Tags },
	maxPage:  1000,
	unpaged:  true,
	idParam:  "vpcPeeringConnectionIds",
	filters: map[string]func(Peering) []string{
		"status-code": func(p Peering) []string { return oneValue(p.Status) },
	},
}

func (s *Sim) describeVpcPeeringConnections(in *describePeeringsInput) (*describePeeringsOutput, error) {
	chosen, next, err := peeringCatalogue.choosePage(slices.Clone(s.cfg.Peerings), in.PeeringIDs, in.page)
	if err != nil {
		return nil, err
	}
	out := &describePeeringsOutput{NextToken: next}
	for _, p := range chosen {
		active := p.Status == "active"
		out.Peerings.Items = append(out.Peerings.Items, peeringItem{
			ID: p.ID, Requester: p.Requester.item(active), Accepter: p.Accepter.item(active),
			Code: p.Status, Message: peeringStatus[p.Status], Tags: tagSet(p.Tags),
		})
	}
	return out, nil
}

// item returns one side of a peering as an answer shows it. "CIDR block information is only returned when describing an
// active VPC peering connection" (API: VpcPeeringConnection).
func (p PeerVPC) item(active bool) peerItem {
	item := peerItem{OwnerID: p.Account, VPCID: p.ID, Region: p.Region}
	if !active {
		return item
	}
	item.CIDRBlock, item.CIDRBlocks, item.IPv6Blocks = &p.CIDRs[0], new(set[cidrBlock]), new(set[ipv6Block])
	for _, c := range p.CIDRs {
		item.CIDRBlocks.Items = append(item.CIDRBlocks.Items, cidrBlock{c})
	}
	for _, c := range p.IPv6CIDRs {
		item.IPv6Blocks.Items = append(item.IPv6Blocks.Items, ipv6Block{c})
	}
	return item
}

// peeringStatus has the statuses of a peering, and EC2's message for each (API: VpcPeeringConnectionStateReason).
var peeringStatus = map[string]string{
	"initiating-request": "Initiating Request",
	"pending-acceptance": "Pending Acceptance",
	"active":             "Active",
	"deleted":            "Deleted",
	"rejected":           "Rejected",
	"failed":             "Failed",
	"expired":            "Expired",
	"provisioning":       "Provisioning",
	"deleting":           "Deleting",
}
