// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// AttachENI attaches an ENI to a network card of an instance, at a device index of this card (AttachNetworkInterface),
// and returns the attachment's ID. EC2 answers long before the kernel finds the ENI, so the caller must wait for the
// link.
//
// If AttachENI returns [ErrIndexTaken], the caller can try another index. [ErrInstanceFull] means that the instance
// cannot have more ENIs. [ErrNotFound] can be temporary if the ENI was created a moment ago.
func (c *Client) AttachENI(ctx context.Context, eni, instance string, card, index int) (attachment string, err error) {
	const action = "AttachNetworkInterface"
	out, err := call(ctx, c, action, c.ec2.AttachNetworkInterface, &ec2.AttachNetworkInterfaceInput{
		NetworkInterfaceId: &eni,
		InstanceId:         &instance,
		// the request names the card even if the card is 0. If an instance has several cards, EC2 refuses a request
		// that names no card (cilium/cilium#42512)
		NetworkCardIndex: new(int32(card)),
		DeviceIndex:      new(int32(index)),
	})
	if err != nil {
		return "", err
	}
	attachment = sdk.ToString(out.AttachmentId)
	if attachment == "" {
		return "", validate(action, errors.New("it has no attachment ID"))
	}
	logChange(ctx, action, out.ResultMetadata, "eni", eni, "instance", instance, "card", card, "index", index,
		"attachment", attachment)
	return attachment, nil
}

// DeleteOnTermination makes EC2 delete the ENI when EC2 terminates the instance (ModifyNetworkInterfaceAttribute). By
// default, EC2 does not delete an ENI that a program has attached to a running instance.
func (c *Client) DeleteOnTermination(ctx context.Context, eni, attachment string) error {
	const action = "ModifyNetworkInterfaceAttribute"
	out, err := call(ctx, c, action, c.ec2.ModifyNetworkInterfaceAttribute, &ec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: &eni,
		Attachment: &types.NetworkInterfaceAttachmentChanges{AttachmentId: &attachment,
			DeleteOnTermination: new(true)},
	})
	if err != nil {
		return err
	}
	logChange(ctx, action, out.ResultMetadata, "eni", eni, "deleteOnTermination", true)
	return nil
}

// DetachENI begins to detach an ENI from its instance (DetachNetworkInterface). DetachENI never sets Force, because a
// forced detachment may block the device index until the instance is terminated (EC2 user guide, "Detach a network
// interface"). The detachment is complete when the ENI's status is available. [ErrNotFound] means that the attachment
// no longer exists.
func (c *Client) DetachENI(ctx context.Context, attachment string) error {
	const action = "DetachNetworkInterface"
	out, err := call(ctx, c, action, c.ec2.DetachNetworkInterface,
		&ec2.DetachNetworkInterfaceInput{AttachmentId: &attachment})
	if err != nil {
		return err
	}
	logChange(ctx, action, out.ResultMetadata, "attachment", attachment)
	return nil
}
