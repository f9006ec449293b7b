// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// networkInterface is an ENI on the wire (API: NetworkInterface). The types below are its parts.
type networkInterface struct {
	ID                 string                      `xml:"networkInterfaceId"`
	SubnetID           string                      `xml:"subnetId"`
	VPCID              string                      `xml:"vpcId"`
	AvailabilityZone   string                      `xml:"availabilityZone"`
	Description        string                      `xml:"description"`
	OwnerID            string                      `xml:"ownerId"`
	RequesterManaged   bool                        `xml:"requesterManaged"`
	Status             string                      `xml:"status"`
	MACAddress         string                      `xml:"macAddress"`
	PrivateIPAddress   *netip.Addr                 `xml:"privateIpAddress"`
	PrivateDNSName     string                      `xml:"privateDnsName,omitempty"`
	SourceDestCheck    bool                        `xml:"sourceDestCheck"`
	Groups             set[groupIdentifier]        `xml:"groupSet"`
	Attachment         *networkInterfaceAttachment `xml:"attachment"`
	Association        *association                `xml:"association"`
	Tags               set[tag]                    `xml:"tagSet"`
	PrivateIPAddresses set[privateIPAddress]       `xml:"privateIpAddressesSet"`
	IPv4Prefixes       set[prefixItem]             `xml:"ipv4PrefixSet"`
	IPv6Addresses      set[ipv6Address]            `xml:"ipv6AddressesSet"`
	IPv6Prefixes       set[prefix6Item]            `xml:"ipv6PrefixSet"`
	IPv6Native         bool                        `xml:"ipv6Native,omitempty"`
	InterfaceType      string                      `xml:"interfaceType"`
	Tracking           *trackingItem               `xml:"connectionTrackingConfiguration"`
}

type groupIdentifier struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

type networkInterfaceAttachment struct {
	ID                  string    `xml:"attachmentId"`
	InstanceID          string    `xml:"instanceId"`
	InstanceOwnerID     string    `xml:"instanceOwnerId"`
	DeviceIndex         int       `xml:"deviceIndex"`
	NetworkCardIndex    int       `xml:"networkCardIndex"`
	Status              string    `xml:"status"`
	AttachTime          time.Time `xml:"attachTime"`
	DeleteOnTermination bool      `xml:"deleteOnTermination"`
}

type association struct {
	PublicIP  netip.Addr `xml:"publicIp"`
	IPOwnerID string     `xml:"ipOwnerId"`
}

type privateIPAddress struct {
	Address     netip.Addr   `xml:"privateIpAddress"`
	DNSName     string       `xml:"privateDnsName"`
	Primary     bool         `xml:"primary"`
	Association *association `xml:"association"`
}

type prefixItem struct {
	Prefix netip.Prefix `xml:"ipv4Prefix"`
}

type ipv6Address struct {
	Address netip.Addr `xml:"ipv6Address"`
	Primary bool       `xml:"isPrimaryIpv6"`
}

type prefix6Item struct {
	Prefix netip.Prefix `xml:"ipv6Prefix"`
}

type describeNetworkInterfacesInput struct {
	page
	NetworkInterfaceIDs []string `ec2:"NetworkInterfaceId"`
}

type describeNetworkInterfacesOutput struct {
	head
	NetworkInterfaces set[*networkInterface] `xml:"networkInterfaceSet"`
	NextToken         string                 `xml:"nextToken,omitempty"`
}

// eniCatalogue is the catalogue of ENIs (API: DescribeNetworkInterfaces).
var eniCatalogue = catalogue[*eni]{
	id:       func(e *eni) string { return e.id },
	notFound: func(id string) error { return notFound("InvalidNetworkInterfaceID", "networkInterface ID", id) },
	tags:     func(e *eni) map[string]string { return e.tags },
	maxPage:  1000,
	idParam:  "networkInterfaceIds",
	filters: map[string]func(*eni) []string{
		"attachment.instance-id": func(e *eni) []string {
			if e.attachment == nil {
				return nil
			}
			return oneValue(e.attachment.instance.ID)
		},
		"description":          func(e *eni) []string { return oneValue(e.description) },
		"network-interface-id": func(e *eni) []string { return oneValue(e.id) },
		"status":               func(e *eni) []string { return oneValue(e.status()) },
		"subnet-id":            func(e *eni) []string { return oneValue(e.subnet.ID) },
	},
}

func (s *Sim) describeNetworkInterfaces(in *describeNetworkInterfacesInput) (*describeNetworkInterfacesOutput, error) {
	chosen, next, err := eniCatalogue.choosePage(slices.Collect(maps.Values(s.shownMoment().enis)),
		in.NetworkInterfaceIDs, in.page)
	if err != nil {
		return nil, err
	}
	out := &describeNetworkInterfacesOutput{NextToken: next}
	for _, e := range chosen {
		out.NetworkInterfaces.Items = append(out.NetworkInterfaces.Items, s.networkInterface(e))
	}
	return out, nil
}

// networkInterface returns the ENI as an answer shows it.
func (s *Sim) networkInterface(e *eni) *networkInterface {
	n := &networkInterface{
		ID:               e.id,
		SubnetID:         e.subnet.ID,
		VPCID:            e.subnet.VPC,
		AvailabilityZone: e.subnet.Zone,
		Description:      e.description,
		OwnerID:          s.cfg.Account,
		Status:           e.status(),
		MACAddress:       e.mac,
		SourceDestCheck:  e.sourceDestCheck,
		Association:      s.association(e.publicIP),
		Tags:             tagSet(e.tags),
		InterfaceType:    e.interfaceType(),
		Tracking:         e.tracking.item(),
		IPv6Native:       e.subnet.v4 == nil,
	}
	if a := e.primary(); a.IsValid() {
		n.PrivateIPAddress, n.PrivateDNSName = &a, s.dnsName(a)
	}
	for _, id := range e.groups {
		n.Groups.Items = append(n.Groups.Items, groupIdentifier{ID: id, Name: s.groupName(id)})
	}
	for i, a := range e.v4.addrs {
		address := privateIPAddress{Address: a, DNSName: s.dnsName(a), Primary: i == 0}
		if i == 0 {
			address.Association = n.Association
		}
		n.PrivateIPAddresses.Items = append(n.PrivateIPAddresses.Items, address)
	}
	for _, p := range e.v4.prefixes {
		n.IPv4Prefixes.Items = append(n.IPv4Prefixes.Items, prefixItem{p})
	}
	for _, a := range e.v6.addrs {
		n.IPv6Addresses.Items = append(n.IPv6Addresses.Items, ipv6Address{Address: a})
	}
	for _, p := range e.v6.prefixes {
		n.IPv6Prefixes.Items = append(n.IPv6Prefixes.Items, prefix6Item{p})
	}
	if a := e.attachment; a != nil {
		n.Attachment = &networkInterfaceAttachment{
			ID: a.id, InstanceID: a.instance.ID, InstanceOwnerID: s.cfg.Account, DeviceIndex: a.index,
			NetworkCardIndex: a.card,
			Status:           a.status, AttachTime: a.since.UTC().Truncate(time.Second),
			DeleteOnTermination: a.deleteOnTermination,
		}
	}
	return n
}

func (s *Sim) association(public netip.Addr) *association {
	if !public.IsValid() {
		return nil
	}
	return &association{PublicIP: public, IPOwnerID: "amazon"}
}

// status returns the status of the ENI, not of its attachment (API: DescribeNetworkInterfaces, the filter "status").
func (e *eni) status() string {
	if e.attachment != nil {
		return "in-use"
	}
	return "available"
}

func texts[T interface{ String() string }](values []T) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.String()
	}
	return list
}
