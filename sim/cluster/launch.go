// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster

import (
	"fmt"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A LaunchTemplate is the output of cni-tool launch-template.
type LaunchTemplate struct {
	NetworkInterfaces []struct {
		DeviceIndex, NetworkCardIndex                                    int
		SubnetID                                                         string `json:"SubnetId"`
		SecondaryPrivateIPAddressCount, IPv4PrefixCount, IPv6PrefixCount int
	}
	TagSpecifications []struct {
		ResourceType string
		Tags         []struct{ Key, Value string }
	}
}

// attachENIs creates the ENIs of a launch template except the boot ENI, and attaches them to an instance. The real EC2
// does this at the launch.
func (l LaunchTemplate) attachENIs(f *vpcsim.Fabric, i *vpcsim.Instance) error {
	for _, n := range l.NetworkInterfaces {
		if n.DeviceIndex == 0 && n.NetworkCardIndex == 0 {
			continue
		}
		eni := map[string]string{
			"SubnetId":                       n.SubnetID,
			"SecondaryPrivateIpAddressCount": fmt.Sprint(n.SecondaryPrivateIPAddressCount),
			"Ipv4PrefixCount":                fmt.Sprint(n.IPv4PrefixCount),
			"Ipv6PrefixCount":                fmt.Sprint(n.IPv6PrefixCount),
		}
		for s, spec := range l.TagSpecifications {
			at := fmt.Sprintf("TagSpecification.%d.", s+1)
			eni[at+"ResourceType"] = spec.ResourceType
			for k, tag := range spec.Tags {
				eni[fmt.Sprintf("%sTag.%d.Key", at, k+1)], eni[fmt.Sprintf("%sTag.%d.Value", at,
					k+1)] = tag.Key, tag.Value
			}
		}
		before := f.EC2.ENIs()
		if err := f.EC2.Operate("CreateNetworkInterface", eni); err != nil {
			return err
		}
		after := slices.DeleteFunc(f.EC2.ENIs(), func(e ec2sim.ENI) bool {
			return slices.ContainsFunc(before, func(b ec2sim.ENI) bool { return b.ID == e.ID })
		})
		err := f.EC2.Operate("AttachNetworkInterface", map[string]string{
			"NetworkInterfaceId": after[0].ID, "InstanceId": i.ID,
			"DeviceIndex": fmt.Sprint(n.DeviceIndex), "NetworkCardIndex": fmt.Sprint(n.NetworkCardIndex),
		})
		if err == nil {
			err = setDeleteOnTermination(f, after[0].ID)
		}
		if err != nil {
			return err
		}
	}
	return f.Err()
}

// setDeleteOnTermination tells EC2 to delete an attached ENI together with the instance, as for ENIs that EC2 creates
// at a launch.
func setDeleteOnTermination(f *vpcsim.Fabric, eni string) error {
	all := f.EC2.ENIs()
	i := slices.IndexFunc(all, func(e ec2sim.ENI) bool { return e.ID == eni })
	return f.EC2.Operate("ModifyNetworkInterfaceAttribute", map[string]string{
		"NetworkInterfaceId": eni, "Attachment.AttachmentId": all[i].Attachment,
		"Attachment.DeleteOnTermination": "true",
	})
}
