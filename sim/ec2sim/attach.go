// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import "strings"

type attachNetworkInterfaceInput struct {
	DeviceIndex        *int   `ec2:"DeviceIndex,required"`
	InstanceID         string `ec2:"InstanceId,required"`
	NetworkCardIndex   int    `ec2:"NetworkCardIndex"`
	NetworkInterfaceID string `ec2:"NetworkInterfaceId,required"`
}

type attachNetworkInterfaceOutput struct {
	head
	AttachmentID     string `xml:"attachmentId"`
	NetworkCardIndex int    `xml:"networkCardIndex"`
}

// attachNetworkInterface attaches an ENI to a running instance (API: AttachNetworkInterface). DeleteOnTermination is
// false until ModifyNetworkInterfaceAttribute sets it.
func (s *Sim) attachNetworkInterface(in *attachNetworkInterfaceInput) (*attachNetworkInterfaceOutput, error) {
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	i, err := s.runningInstance(in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := s.checkAttach(e, i, in.NetworkCardIndex, *in.DeviceIndex); err != nil {
		return nil, err
	}
	a := s.attach(e, i, in.NetworkCardIndex, *in.DeviceIndex, s.cfg.AttachDelay)
	return &attachNetworkInterfaceOutput{AttachmentID: a.id, NetworkCardIndex: a.card}, nil
}

// checkAttach refuses an attachment that EC2's rules do not allow (API: AttachNetworkInterface; Guide: "Elastic network
// interfaces", "Network cards", "Maximum IP addresses per network interface"). If a card does not have the boot ENI,
// another ENI may have device index 0 on this card (in practice: amazon-vpc-cni-k8s uses this index; see also
// amazonlinux/amazon-ec2-net-utils#104).
func (s *Sim) checkAttach(e *eni, i *Instance, card, index int) error {
	switch {
	case e.attachment != nil:
		return refuse("InvalidNetworkInterface.InUse", "Interface: [%s] in use", e.id)
	case e.subnet.Zone != i.Zone:
		return refuse("InvalidParameterCombination",
			"You may not attach a network interface to an instance if they are not in the same availability zone")
	case e.subnet.Outpost != s.subnets[i.Subnet].Outpost: // the error code and the message are guesses
		return refuse("InvalidParameterCombination",
			"You may not attach a network interface to an instance if they are not on the same Outpost")
	case card < 0 || card >= len(i.limits.cards()):
		return invalidValue(card, "networkCardIndex", "The instance type has no such network card.")
	case index < 0:
		return invalidValue(index, "deviceIndex", "It must not be negative.")
	}
	if err := i.limits.checkLimits(e.v4.slots(), e.v6.slots(), len(e.v4.prefixes)+len(e.v6.prefixes) > 0); err != nil {
		return err
	}
	return s.checkSlot(i, card, index)
}

// checkLimits refuses an ENI with more addresses than the instance type allows. It also refuses IPv6 addresses on a
// type without IPv6, and prefixes on a type without prefixes.
func (t InstanceType) checkLimits(v4, v6 int, prefixes bool) error {
	switch {
	case v6 > 0 && t.IPv6PerENI == 0:
		return noIPv6(t.Name)
	case v4 > t.IPv4PerENI || v6 > t.IPv6PerENI:
		return refuse("InvalidInterface.IpAddressLimitExceeded",
			"Number of private addresses exceeds the limit of %s.", t.Name)
	case prefixes && t.Xen:
		return noPrefixes(t.Name)
	}
	return nil
}

// checkSlot refuses a used device index. It also refuses an ENI if the card or the instance already has as many ENIs as
// it may have. The limit of the instance counts the ENIs of all cards (Guide: "Network cards"). The simulator checks
// the index before the limits. It is a guess that EC2 does the same.
//
// On types with several cards, the index must be lower than the card's limit of ENIs. In practice, EC2 refuses every
// other index at a launch (aws/aws-k8s-tester#531). It is a guess that EC2 also refuses such an index at an attachment.
func (s *Sim) checkSlot(i *Instance, card, index int) error {
	all := s.enisOf(i)
	onCard, most := 0, i.limits.cards()[card]
	if len(i.limits.cards()) > 1 && index >= most {
		return refuse("InvalidParameterValue",
			"The specified number '%d' for the device index exceeds the maximum number of "+
				"network interfaces supported by the network card at network card index %d. The maximum "+
				"devices for this "+
				"network card "+
				"is %d. Specify a number from 0 to %d, and try again.", index, card, most, most-1)
	}
	for _, other := range all {
		if other.attachment.card != card {
			continue
		}
		onCard++
		if other.attachment.index == index {
			return refuse("InvalidParameterValue",
				"Instance '%s' already has an interface attached at device index '%d'.", i.ID, index)
		}
	}
	if len(all) >= i.limits.ENIs || onCard >= most {
		return refuse("AttachmentLimitExceeded", "Interface count %d exceeds the limit for %s", len(all)+1, i.Type)
	}
	return nil
}

type detachNetworkInterfaceInput struct {
	AttachmentID string `ec2:"AttachmentId,required"`
	Force        bool   `ec2:"Force"`
}

// detachNetworkInterface detaches an ENI, but never the boot ENI (API: DetachNetworkInterface; Guide: "Elastic network
// interfaces": "You can't detach a primary network interface from an instance").
func (s *Sim) detachNetworkInterface(in *detachNetworkInterfaceInput) (*emptyOutput, error) {
	e, err := s.attachmentOf(in.AttachmentID)
	if err != nil {
		return nil, err
	}
	a, delay := e.attachment, s.cfg.DetachDelay
	switch {
	case a.boot:
		return nil, refuse("OperationNotPermitted",
			"The network interface at device index %d and networkCard index %d cannot be detached.", a.index, a.card)
	case in.Force:
		delay = 0
	case a.status == "detaching":
		return nil, refuse("IncorrectState", "The attachment '%s' is already detaching.", a.id)
	}
	s.detach(e, delay)
	return &emptyOutput{Return: true}, nil
}

// attachmentOf returns the ENI whose attachment has this ID.
func (s *Sim) attachmentOf(id string) (*eni, error) {
	if !strings.HasPrefix(id, "eni-attach-") {
		return nil, refuse("InvalidNetworkInterfaceAttachmentId.Malformed",
			"Invalid id: %q (expecting \"eni-attach-...\")", id)
	}
	for _, e := range s.enis {
		if e.attachment != nil && e.attachment.id == id {
			return e, nil
		}
	}
	return nil, notFound("InvalidAttachmentID", "attachment", id)
}
