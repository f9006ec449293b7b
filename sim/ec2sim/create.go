// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import "net/netip"

type createNetworkInterfaceInput struct {
	ClientToken                    string             `ec2:"ClientToken"`
	Tracking                       *trackingRequest   `ec2:"ConnectionTrackingSpecification"`
	Description                    string             `ec2:"Description"`
	InterfaceType                  string             `ec2:"InterfaceType"`
	IPv4PrefixCount                int                `ec2:"Ipv4PrefixCount"`
	IPv4Prefixes                   []prefixRequest    `ec2:"Ipv4Prefix"`
	IPv6AddressCount               *int               `ec2:"Ipv6AddressCount"`
	IPv6Addresses                  []address6Request  `ec2:"Ipv6Addresses"`
	IPv6PrefixCount                int                `ec2:"Ipv6PrefixCount"`
	IPv6Prefixes                   []prefix6Request   `ec2:"Ipv6Prefix"`
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

type prefix6Request struct {
	Prefix netip.Prefix `ec2:"Ipv6Prefix,required"`
}

type addressRequest struct {
	Address netip.Addr `ec2:"PrivateIpAddress,required"`
	Primary bool       `ec2:"Primary"`
}

type address6Request struct {
	Address netip.Addr `ec2:"Ipv6Address,required"`
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

// createNetworkInterface creates an ENI (API: CreateNetworkInterface).
func (s *Sim) createNetworkInterface(in *createNetworkInterfaceInput) (*createNetworkInterfaceOutput, error) {
	if first, err := s.earlierAnswer(in); first != nil || err != nil {
		return first, err
	}
	e, err := s.createENI(in)
	if err != nil {
		return nil, err
	}
	shown := s.networkInterface(e)
	// EC2's answer shows "pending" (API: CreateNetworkInterface, the example). Describe actions show "available".
	shown.Status = "pending"
	out := &createNetworkInterfaceOutput{NetworkInterface: shown, ClientToken: in.ClientToken}
	s.rememberToken(e, in, out)
	return out, nil
}

func (s *Sim) createENI(in *createNetworkInterfaceInput) (*eni, error) {
	w, err := in.spec()
	if err != nil {
		return nil, err
	}
	sub, err := s.subnet(in.SubnetID)
	if err != nil {
		return nil, err
	}
	groups, err := s.checkGroupsIn(sub, in.SecurityGroupIDs)
	if err != nil {
		return nil, err
	}
	tags, err := tagsFor("network-interface", in.TagSpecifications)
	if err != nil {
		return nil, err
	}
	tracking, err := in.Tracking.applyTo(Tracking{})
	if err != nil {
		return nil, err
	}
	if 1+w.v4.slots() > s.maxIPv4 || w.v6.slots() > s.maxIPv6 {
		return nil, tooManyAddresses()
	}
	e, err := s.newENI(sub, groups, w)
	if err != nil {
		return nil, err
	}
	e.description, e.tags, e.tracking, e.findableFrom = in.Description, tags, tracking, s.findableFrom()
	return e, nil
}

// spec returns the spec of the new ENI. In each family, a request may set only one field of the demand. In addition,
// the request may name a primary IPv4 address (API: CreateNetworkInterface, the parameters).
func (in *createNetworkInterfaceInput) spec() (spec, error) {
	if in.InterfaceType != "" && in.InterfaceType != "interface" {
		return spec{}, invalidValue(in.InterfaceType, "interfaceType", "The simulator makes plain interfaces only.")
	}
	w := spec{
		primary: in.PrivateIPAddress,
		v4: demand{count: nilIfZero(&in.SecondaryPrivateIPAddressCount),
			prefixCount: nilIfZero(&in.IPv4PrefixCount)},
		v6: demand{count: in.IPv6AddressCount, prefixCount: nilIfZero(&in.IPv6PrefixCount)},
	}
	for _, a := range in.PrivateIPAddresses {
		switch {
		case !a.Primary:
			w.v4.addrs = append(w.v4.addrs, a.Address)
		case w.primary.IsValid():
			return spec{}, refuse("InvalidParameterCombination",
				"Only one primary private IP address can be specified.")
		default:
			w.primary = a.Address
		}
	}
	for _, p := range in.IPv4Prefixes {
		w.v4.prefixes = append(w.v4.prefixes, p.Prefix)
	}
	for _, a := range in.IPv6Addresses {
		w.v6.addrs = append(w.v6.addrs, a.Address)
	}
	for _, p := range in.IPv6Prefixes {
		w.v6.prefixes = append(w.v6.prefixes, p.Prefix)
	}
	return w, w.validate()
}

type deleteNetworkInterfaceInput struct {
	NetworkInterfaceID string `ec2:"NetworkInterfaceId,required"`
}

// deleteNetworkInterface deletes an ENI that is not attached (API: DeleteNetworkInterface). For an attached ENI, the
// API's page "Error codes" lists both InvalidNetworkInterface.InUse and InvalidParameterValue. In practice, EC2 answers
// with InvalidParameterValue.
func (s *Sim) deleteNetworkInterface(in *deleteNetworkInterfaceInput) (*emptyOutput, error) {
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	if e.attachment != nil {
		return nil, refuse("InvalidParameterValue", "Network interface '%s' is currently in use.", e.id)
	}
	s.deleteENI(e)
	return &emptyOutput{Return: true}, nil
}
