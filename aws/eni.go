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

// UnknownIndex is the Index of an ENI that is not attached, or whose device index is not in metadata yet.
const UnknownIndex = -1

// An ENI is an elastic network interface. Both metadata and EC2 report the first group of fields.
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

	// Only metadata reports this group of fields.
	Boot         bool           // it is the boot ENI: its MAC is the value of the metadata key "mac"
	CIDR         netip.Prefix   // IPv4 CIDR of the subnet; zero if the subnet has no IPv4
	VPCCIDRs     []netip.Prefix // IPv4 CIDRs of the VPC, the primary CIDR first
	IPv6CIDR     netip.Prefix   // IPv6 CIDR of the subnet; zero if the subnet has no IPv6
	VPCIPv6CIDRs []netip.Prefix

	// Only EC2 reports this group of fields.
	Description         string
	Status              string // available, in-use, ...
	Instance            string // ID of the instance that the ENI is attached to
	Attachment          string // the attachment's ID
	AttachmentStatus    string // attaching, Attached or Detaching
	DeleteOnTermination bool   // of the attachment
	Tracking            Tracking
	Tags                map[string]string
}

// Values of AttachmentStatus.
const (
	Attached  = string(types.AttachmentStatusAttached)
	Detaching = string(types.AttachmentStatusDetaching)
)

// parseENI converts an ENI from the SDK's type, and validates it. For an invalid ENI with a valid ID, parseENI returns
// an error and an ENI that has at least the ID.
func parseENI(n types.NetworkInterface) (ENI, error) {
	e := ENI{
		ID:     sdk.ToString(n.NetworkInterfaceId),
		Index:  UnknownIndex,
		Subnet: sdk.ToString(n.SubnetId),
		VPC:    sdk.ToString(n.VpcId),
		SecurityGroups: fieldTexts(n.Groups,
			func(g types.GroupIdentifier) *string { return g.GroupId }),
		Description: sdk.ToString(n.Description),
		Status:      string(n.Status),
		Tags:        tagMap(n.TagSet),
	}
	if err := checkID("eni-", e.ID); err != nil {
		return ENI{}, err
	}
	if i := slices.IndexFunc(n.PrivateIpAddresses, isPrimary); i > 0 {
		n.PrivateIpAddresses[0], n.PrivateIpAddresses[i] = n.PrivateIpAddresses[i], n.PrivateIpAddresses[0]
	}
	var errs [7]error
	e.Addrs, errs[0] = parseAll(ipv4, fieldTexts(n.PrivateIpAddresses,
		func(a types.NetworkInterfacePrivateIpAddress) *string { return a.PrivateIpAddress }))
	e.Prefixes, errs[1] = parseAll(ipv4Prefix, fieldTexts(n.Ipv4Prefixes,
		func(p types.Ipv4PrefixSpecification) *string { return p.Ipv4Prefix }))
	e.IPv6Addrs, errs[2] = parseAll(ipv6, fieldTexts(n.Ipv6Addresses,
		func(a types.NetworkInterfaceIpv6Address) *string { return a.Ipv6Address }))
	e.IPv6Prefixes, errs[3] = parseAll(ipv6Prefix, fieldTexts(n.Ipv6Prefixes,
		func(p types.Ipv6PrefixSpecification) *string { return p.Ipv6Prefix }))
	errs[4] = e.setAttachment(n.Attachment)
	errs[5] = e.checkAndSetMAC(sdk.ToString(n.MacAddress))
	e.Tracking, errs[6] = parseTracking(n.ConnectionTrackingConfiguration)
	if err := errors.Join(errs[:]...); err != nil {
		return e, fmt.Errorf("%s: %w", e.ID, err)
	}
	return e, nil
}

// setAttachment sets the fields that say where the ENI is attached. If EC2's answer has no device index, Index stays
// UnknownIndex. If the answer has no index of a network card, Card is 0 (EC2 API reference, AttachNetworkInterface:
// "The default is network card index 0").
func (e *ENI) setAttachment(a *types.NetworkInterfaceAttachment) (err error) {
	if a == nil {
		return nil
	}
	e.Instance, e.Attachment = sdk.ToString(a.InstanceId), sdk.ToString(a.AttachmentId)
	e.AttachmentStatus = string(a.Status)
	e.DeleteOnTermination = sdk.ToBool(a.DeleteOnTermination)
	var errs [2]error
	if a.DeviceIndex != nil {
		e.Index, errs[0] = parseNumber("the device index", a.DeviceIndex, 0, maxENIs)
	}
	if a.NetworkCardIndex != nil {
		e.Card, errs[1] = parseNumber("the network card", a.NetworkCardIndex, 0, maxCards)
	}
	return errors.Join(errs[:]...)
}

// checkAndSetMAC sets the MAC of the ENI. It returns an error if an address or a prefix appears twice, or if the MAC is
// invalid. The MAC may be missing only if the ENI has neither addresses nor prefixes.
func (e *ENI) checkAndSetMAC(mac string) error {
	errs := []error{checkUnique(e.Addrs), checkUnique(e.Prefixes), checkUnique(e.IPv6Addrs),
		checkUnique(e.IPv6Prefixes)}
	if mac != "" || len(e.Addrs)+len(e.Prefixes)+len(e.IPv6Addrs)+len(e.IPv6Prefixes) > 0 {
		var err error
		e.MAC, err = parseMAC(mac)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// isPrimary reports whether the address is the ENI's primary address. EC2 usually lists the primary address first, but
// does not guarantee this order.
func isPrimary(a types.NetworkInterfacePrivateIpAddress) bool { return sdk.ToBool(a.Primary) }
