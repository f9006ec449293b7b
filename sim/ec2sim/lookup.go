// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"slices"
	"strings"
	"time"
)

// defaultGroup is the security group of an ENI that is created without a group (API: CreateNetworkInterface).
const defaultGroup = "sg-default"

// maxGroups is how many security groups an ENI may have (VPC Guide: "Amazon VPC quotas").
const maxGroups = 5

// eni returns the ENI with this ID. If there is a [Lag], eni can fail to find a new ENI for some time.
func (s *Sim) eni(id string) (*eni, error) {
	if !strings.HasPrefix(id, "eni-") {
		return nil, refuse("InvalidNetworkInterfaceId.Malformed", "Invalid id: %q (expecting \"eni-...\")", id)
	}
	if e, ok := s.enis[id]; ok && !time.Now().Before(e.findableFrom) {
		return e, nil
	}
	return nil, notFound("InvalidNetworkInterfaceID", "networkInterface ID", id)
}

func (s *Sim) subnet(id string) (*subnet, error) {
	if sub, ok := s.subnets[id]; ok {
		return sub, nil
	}
	return nil, notFound("InvalidSubnetID", "subnet ID", id)
}

// checkGroupsIn checks the security groups of a new ENI in a subnet, and returns the groups. A group must be in the VPC
// of the subnet (ansible/ansible-modules-core#347 quotes EC2's error).
func (s *Sim) checkGroupsIn(sub *subnet, ids []string) ([]string, error) {
	for _, id := range ids {
		vpc, ok := s.cfg.GroupVPCs[id]
		if g := s.madeGroups[id]; g != nil {
			vpc, ok = g.vpc, true
		}
		if ok && vpc != sub.VPC {
			return nil, refuse("InvalidParameter",
				"Security group %s and subnet %s belong to different networks.", id, sub.ID)
		}
	}
	return s.checkGroups(ids)
}

func (s *Sim) checkGroups(ids []string) ([]string, error) {
	if len(ids) == 0 {
		return []string{defaultGroup}, nil
	}
	if len(ids) > maxGroups {
		return nil, refuse("SecurityGroupsPerInterfaceLimitExceeded",
			"You have exceeded the limit of %d security groups per interface.", maxGroups)
	}
	for _, id := range ids {
		if s.madeGroups[id] == nil && len(s.cfg.SecurityGroups) > 0 && !slices.Contains(s.cfg.SecurityGroups, id) {
			return nil, notFound("InvalidGroup", "security group", id)
		}
	}
	return slices.Clone(ids), nil
}
