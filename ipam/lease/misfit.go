// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is about ENIs that others have attached: a person, another program, or a launch
// template that says nothing of pods. A node that makes ENIs gives pods no other than it
// would make. So one of others serves only if its security groups are those of secGroupIds,
// and its subnet has subnetTags.
//
// That holds for no ENI that was made for pods, whoever made it, and so not for those that
// have the groups of an older configuration: the registry has no groups of them. With
// "provision" "assign" or "none" the node makes no ENI, and uses those that it is given.

// An ENI whose tags EC2 has not told may be somebody else's. Where the role may not ask, it
// serves all the same, unless there are pools to tell apart: the original asked for no tags.
// Where EC2 could not be asked, it serves nobody until it can.

// Misfit says why pods of the policy's pool do not get addresses of an ENI that others have
// attached; "" if they do. What the kernel and the registry know of its pods stays.
func (policy Policy) Misfit(e registry.ENI) string {
	switch {
	case !policy.told(e):
		return "EC2 has not told its tags yet, which say whose it is"
	case len(e.Groups) == 0 || policy.Provision != ProvisionFull:
		return ""
	case !policy.hasGroups(e):
		return fmt.Sprintf("its security groups are %s, and secGroupIds are %s", strings.Join(e.Groups, ", "), strings.Join(policy.SecurityGroups, ", "))
	case len(e.SubnetTags) == 0 && len(policy.SubnetTags) > 0:
		return "EC2 shows no tags of its subnet " + e.Subnet + ", or was not asked yet, and subnetTags wants some"
	}
	for _, k := range slices.Sorted(maps.Keys(policy.SubnetTags)) {
		if v, ok := e.SubnetTags[k]; !ok || v != policy.SubnetTags[k] {
			return fmt.Sprintf("its subnet %s does not have the tag %s=%s of subnetTags", e.Subnet, k, policy.SubnetTags[k])
		}
	}
	return ""
}

// told reports whether enough is known of whose an ENI is. A node that asks EC2 for nothing
// uses what it is given.
func (policy Policy) told(e registry.ENI) bool {
	return e.TagsUnknown == "" || !policy.Pools && (e.TagsUnknown == registry.NotAllowed || policy.Provision == ProvisionNone)
}

// Unclear reports whether only the tags of its subnet keep an ENI of others from serving:
// EC2 may not have been asked for them yet, or somebody may have changed them.
func (policy Policy) Unclear(e registry.ENI) bool {
	return policy.told(e) && policy.Misfit(e) != "" && policy.hasGroups(e)
}

// hasGroups reports whether an ENI has the security groups that a new one would get. Which
// those are is not known where the configuration leaves them to the VPC.
func (policy Policy) hasGroups(e registry.ENI) bool {
	missing := func(from []string) func(string) bool { return func(g string) bool { return !slices.Contains(from, g) } }
	return len(policy.SecurityGroups) == 0 ||
		!slices.ContainsFunc(e.Groups, missing(policy.SecurityGroups)) && !slices.ContainsFunc(policy.SecurityGroups, missing(e.Groups))
}
