// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// UnknownIndex is the Index of an ENI that is not attached, or whose device index metadata
// does not know yet.
const UnknownIndex = -1

// An ENI is an elastic network interface. Some fields come only from metadata, some only from EC2, and all other fields
// from both.
type ENI struct {
	ID             string
	MAC            string // as the kernel writes it
	Index          int    // device index within its card, or UnknownIndex
	Card           int    // network card index
	Subnet         string
	VPC            string
	SecurityGroups []string
	Addrs          []netip.Addr   // private IPv4 addresses, the primary one first
	Prefixes       []netip.Prefix // delegated IPv4 prefixes, /28
	IPv6Addrs      []netip.Addr
	IPv6Prefixes   []netip.Prefix // delegated IPv6 prefixes, /80

	// Only metadata has these fields.
	Boot         bool           // it is the boot ENI, at any index: metadata has its MAC at the key "mac"
	CIDR         netip.Prefix   // of the subnet; zero if the subnet has no IPv4
	VPCCIDRs     []netip.Prefix // IPv4 CIDRs of the VPC, the primary CIDR first
	IPv6CIDR     netip.Prefix   // of the subnet; zero if the subnet has no IPv6
	VPCIPv6CIDRs []netip.Prefix

	// Only EC2 has these fields.
	Description         string
	Status              string // available, in-use, ...
	Instance            string // ID of the instance that the ENI is attached to
	Attachment          string // the attachment's ID
	AttachmentStatus    string // attaching, Attached or Detaching
	DeleteOnTermination bool   // of the attachment
	Tracking            Tracking
	Tags                map[string]string
}

// The statuses of an attachment: the ENI is attached, or EC2 is detaching it.
const (
	Attached  = string(types.AttachmentStatusAttached)
	Detaching = string(types.AttachmentStatusDetaching)
)

// Gateway is the address of the VPC router in the ENI's subnet: the subnet's first address (VPC user guide, "Subnet
// CIDR blocks"). Without a CIDR, Gateway returns the zero address.
func (e ENI) Gateway() netip.Addr { return nth(e.CIDR, 1) }

// DNS is the address of the VPC's resolver: the second address of the VPC's primary CIDR (VPC user guide, "Amazon DNS
// server"). DNS returns the zero address if the VPC's CIDRs are not known.
func (e ENI) DNS() netip.Addr {
	if len(e.VPCCIDRs) == 0 {
		return netip.Addr{}
	}
	return nth(e.VPCCIDRs[0], 2)
}

// nth is the address n steps above the prefix's base.
func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// parseENI parses EC2's answer. After an error, the returned ENI still has its ID, if the ID is valid.
func parseENI(n types.NetworkInterface) (ENI, error) {
	e := ENI{
		ID:     sdk.ToString(n.NetworkInterfaceId),
		Index:  UnknownIndex,
		Subnet: sdk.ToString(n.SubnetId),
		VPC:    sdk.ToString(n.VpcId),
		SecurityGroups: texts(n.Groups,
			func(g types.GroupIdentifier) *string { return g.GroupId }),
		Description: sdk.ToString(n.Description),
		Status:      string(n.Status),
		Tags:        tags(n.TagSet),
	}
	if err := checkID("eni-", e.ID); err != nil {
		return ENI{}, err
	}
	if i := slices.IndexFunc(n.PrivateIpAddresses, isPrimary); i > 0 {
		n.PrivateIpAddresses[0], n.PrivateIpAddresses[i] = n.PrivateIpAddresses[i], n.PrivateIpAddresses[0]
	}
	var errs [7]error
	e.Addrs, errs[0] = parseAll(ipv4, texts(n.PrivateIpAddresses,
		func(a types.NetworkInterfacePrivateIpAddress) *string { return a.PrivateIpAddress }))
	e.Prefixes, errs[1] = parseAll(ipv4Prefix, texts(n.Ipv4Prefixes,
		func(p types.Ipv4PrefixSpecification) *string { return p.Ipv4Prefix }))
	e.IPv6Addrs, errs[2] = parseAll(ipv6, texts(n.Ipv6Addresses,
		func(a types.NetworkInterfaceIpv6Address) *string { return a.Ipv6Address }))
	e.IPv6Prefixes, errs[3] = parseAll(ipv6Prefix, texts(n.Ipv6Prefixes,
		func(p types.Ipv6PrefixSpecification) *string { return p.Ipv6Prefix }))
	errs[4] = e.attach(n.Attachment)
	errs[5] = e.check(sdk.ToString(n.MacAddress))
	e.Tracking, errs[6] = parseTracking(n.ConnectionTrackingConfiguration)
	if err := errors.Join(errs[:]...); err != nil {
		return e, fmt.Errorf("%s: %w", e.ID, err)
	}
	return e, nil
}

// attach reads where the ENI is attached. Without a device index, the Index stays UnknownIndex. Without a network card
// index, the card is 0 (EC2 API reference, AttachNetworkInterface: "The default is network card index 0").
func (e *ENI) attach(a *types.NetworkInterfaceAttachment) (err error) {
	if a == nil {
		return nil
	}
	e.Instance, e.Attachment = sdk.ToString(a.InstanceId), sdk.ToString(a.AttachmentId)
	e.AttachmentStatus = string(a.Status)
	e.DeleteOnTermination = sdk.ToBool(a.DeleteOnTermination)
	var errs [2]error
	if a.DeviceIndex != nil {
		e.Index, errs[0] = number("the device index", a.DeviceIndex, 0, maxENIs)
	}
	if a.NetworkCardIndex != nil {
		e.Card, errs[1] = number("the network card", a.NetworkCardIndex, 0, maxCards)
	}
	return errors.Join(errs[:]...)
}

// check refuses an inconsistent ENI, and sets its MAC. Only an ENI without addresses may
// have no MAC.
func (e *ENI) check(mac string) error {
	errs := []error{once(e.Addrs), once(e.Prefixes), once(e.IPv6Addrs), once(e.IPv6Prefixes)}
	if mac != "" || len(e.Addrs)+len(e.Prefixes)+len(e.IPv6Addrs)+len(e.IPv6Prefixes) > 0 {
		var err error
		e.MAC, err = parseMAC(mac)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// isPrimary reports whether the address is the primary one. EC2 usually lists the primary address first, but only the
// flag is certain.
func isPrimary(a types.NetworkInterfacePrivateIpAddress) bool { return sdk.ToBool(a.Primary) }
