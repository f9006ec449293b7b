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

// This file is about ENIs of others: a person, another program, or a launch template has attached them, but not for
// pods. On a node that creates ENIs, an ENI of others serves pods only if it is like the ENIs that the node creates. It
// must have exactly the security groups of secGroupIds, and its subnet must have the tags of subnetTags.
//
// ENIs that this suite or the original plugin has created for pods still serve pods if the configuration now has other
// groups. With the provision "assign" or "none", the node creates no ENI, and uses all ENIs of others.
//
// If there are several pools, only a tag shows the pool of an ENI that was created for pods. Without this tag, the ENI
// counts as an ENI of others, because it may belong to another pool.

// An ENI with unknown tags may be an ENI of others. If there are several pools, such an ENI serves no pods until EC2
// answers. With only one pool, such an ENI serves pods if the role has no permission to ask EC2, or if the provision is
// "none".

// Misfit returns why an ENI serves no pods of the policy's pool, or "" if it serves them. Pods that already have an
// address of the ENI keep this address.
func (policy Policy) Misfit(e registry.ENI) string {
	switch {
	case !policy.knowsTags(e) && e.IsBoot():
		return "EC2 has not reported the addresses of this ENI yet, and metadata may show old addresses after a boot"
	case !policy.knowsTags(e):
		return "EC2 has not reported the tags of this ENI yet, and these tags show the owner of the ENI"
	case policy.Requestable(e.Tags):
		return "it has the tags of \"enis\" in \"requests\", so only pods that ask for this ENI get its addresses"
	case len(e.Groups) == 0 || e.PoolUnknown && !policy.Pools || policy.Provision != ProvisionFull:
		return ""
	case !policy.hasGroups(e):
		return fmt.Sprintf("its security groups are %s, and secGroupIds are %s", strings.Join(e.Groups, ", "),
			strings.Join(policy.SecurityGroups, ", "))
	case len(e.SubnetTags) == 0 && len(policy.SubnetTags) > 0:
		return "the ENI's subnet " + e.Subnet + " has no tags, or this node has not asked EC2 for them yet, and " +
			`"subnetTags" wants tags`
	}
	for _, k := range slices.Sorted(maps.Keys(policy.SubnetTags)) {
		if v, ok := e.SubnetTags[k]; !ok || v != policy.SubnetTags[k] {
			return fmt.Sprintf("its subnet %s does not have the tag %s=%s of subnetTags", e.Subnet, k,
				policy.SubnetTags[k])
		}
	}
	return ""
}

// knowsTags reports whether the node knows the ENI's tags, or need not know them.
func (policy Policy) knowsTags(e registry.ENI) bool {
	return e.TagsUnknown == "" || !policy.Pools && (e.TagsUnknown == registry.NotAllowed ||
		policy.Provision == ProvisionNone)
}

// Unserved does what Misfit does, and knows one more reason: an operator has retired the ENI (drain-interface).
func (policy Policy) Unserved(e registry.ENI) string {
	if e.Retired {
		return "an operator renews it (cni-tool drain-interface)"
	}
	return policy.Misfit(e)
}

// Unclear reports whether the tags of the ENI's subnet are the only reason why the ENI serves no pods. Perhaps the node
// does not know these tags, or has old ones. So the caller asks EC2 for the tags.
func (policy Policy) Unclear(e registry.ENI) bool {
	return policy.knowsTags(e) && policy.Misfit(e) != "" && policy.hasGroups(e) && !policy.Requestable(e.Tags)
}

// hasGroups reports whether an ENI has exactly the security groups that a new ENI would get. If the configuration names
// no groups, a new ENI gets the default group of the VPC. The node does not know this group, so hasGroups returns true.
func (policy Policy) hasGroups(e registry.ENI) bool {
	missing := func(from []string) func(string) bool { return func(g string) bool { return !slices.Contains(from, g) } }
	return len(policy.SecurityGroups) == 0 ||
		!slices.ContainsFunc(e.Groups, missing(policy.SecurityGroups)) &&
			!slices.ContainsFunc(policy.SecurityGroups, missing(e.Groups))
}
