// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

type modifyNetworkInterfaceAttributeInput struct {
	NetworkInterfaceID string             `ec2:"NetworkInterfaceId,required"`
	Attachment         *attachmentChanges `ec2:"Attachment"`
	Description        *struct {
		Value string `ec2:"Value"`
	} `ec2:"Description"`
	SecurityGroupIDs []string `ec2:"SecurityGroupId"`
	SourceDestCheck  *struct {
		Value bool `ec2:"Value"`
	} `ec2:"SourceDestCheck"`
	Tracking *trackingRequest `ec2:"ConnectionTrackingSpecification"`
}

type attachmentChanges struct {
	AttachmentID        string `ec2:"AttachmentId,required"`
	DeleteOnTermination *bool  `ec2:"DeleteOnTermination,required"`
}

// modifyNetworkInterfaceAttribute changes one attribute of an ENI (API: ModifyNetworkInterfaceAttribute: "You can
// specify only one attribute at a time").
func (s *Sim) modifyNetworkInterfaceAttribute(in *modifyNetworkInterfaceAttributeInput) (*emptyOutput, error) {
	given := []bool{in.Attachment != nil, in.Description != nil, in.SecurityGroupIDs != nil, in.SourceDestCheck != nil,
		in.Tracking != nil}
	if moreThanOne(given...) {
		return nil, refuse("InvalidParameterCombination", "Fields for multiple attribute types specified.")
	}
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	switch {
	case in.Attachment != nil:
		a := e.attachment
		if a == nil || a.id != in.Attachment.AttachmentID {
			return nil, notFound("InvalidAttachmentID", "attachment", in.Attachment.AttachmentID)
		}
		a.deleteOnTermination = *in.Attachment.DeleteOnTermination
	case in.Description != nil:
		e.description = in.Description.Value
	case in.SecurityGroupIDs != nil:
		groups, err := s.checkGroups(in.SecurityGroupIDs)
		if err != nil {
			return nil, err
		}
		e.groups = groups
		s.publishChange(Addressed, e)
	case in.SourceDestCheck != nil:
		e.sourceDestCheck = in.SourceDestCheck.Value
		s.publishChange(Addressed, e)
	case in.Tracking != nil:
		if e.tracking, err = in.Tracking.applyTo(e.tracking); err != nil {
			return nil, err
		}
	default:
		return nil, refuse("InvalidParameterCombination", "No attributes specified.")
	}
	return &emptyOutput{Return: true}, nil
}
