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

// This file is about ENIs that others have attached: a person, another program, or a launch template that is not for
// pods. If the node creates ENIs, pods get addresses only of ENIs that it could have created. So an ENI of others
// serves only if its security groups are secGroupIds, and its subnet has subnetTags.
//
// That does not apply to ENIs that were created for pods, by any program. So an ENI with the groups of an older
// configuration still serves: the registry does not record the groups of such ENIs. With "provision" "assign" or
// "none", the node creates no ENI, and uses those that it gets.

// An ENI may belong to others while its tags are unknown. If EC2 did not answer, the ENI serves no pod until it does.
// If the role may not ask EC2, the ENI serves all the same, unless there are several pools. The original did not ask
// for tags either.

// Misfit returns why pods of the policy's pool get no addresses of an ENI that others have attached. If pods get its
// addresses, Misfit returns "". Pods that have an address of the ENI keep it.
func (policy Policy) Misfit(e registry.ENI) string {
	switch {
	case !policy.told(e) && e.IsBoot():
		return "EC2 has not reported its addresses yet, and after a boot metadata may show old ones"
	case !policy.told(e):
		return "EC2 has not reported its tags yet, by which the node knows its owner"
	case policy.Requestable(e.Tags):
		return "it has the tags of enis in requests: only pods that ask for it get its addresses"
	case len(e.Groups) == 0 || policy.Provision != ProvisionFull:
		return ""
	case !policy.hasGroups(e):
		return fmt.Sprintf("its security groups are %s, and secGroupIds are %s", strings.Join(e.Groups, ", "),
			strings.Join(policy.SecurityGroups, ", "))
	case len(e.SubnetTags) == 0 && len(policy.SubnetTags) > 0:
		return "EC2 shows no tags of its subnet " + e.Subnet + ", or was not asked yet, and subnetTags wants some"
	}
	for _, k := range slices.Sorted(maps.Keys(policy.SubnetTags)) {
		if v, ok := e.SubnetTags[k]; !ok || v != policy.SubnetTags[k] {
			return fmt.Sprintf("its subnet %s does not have the tag %s=%s of subnetTags", e.Subnet, k,
				policy.SubnetTags[k])
		}
	}
	return ""
}

// told reports whether enough is known of the ENI's tags. A node that never asks EC2 uses the
// ENIs that it gets.
func (policy Policy) told(e registry.ENI) bool {
	return e.TagsUnknown == "" || !policy.Pools && (e.TagsUnknown == registry.NotAllowed ||
		policy.Provision == ProvisionNone)
}

// Unserved is Misfit, and also says that an operator renews the ENI.
func (policy Policy) Unserved(e registry.ENI) string {
	if e.Retired {
		return "an operator renews it (cni-tool drain-interface)"
	}
	return policy.Misfit(e)
}

// Unclear reports whether an ENI of others does not serve only because of the tags of its
// subnet. EC2 may not have been asked for them yet, or an operator may have changed them.
func (policy Policy) Unclear(e registry.ENI) bool {
	return policy.told(e) && policy.Misfit(e) != "" && policy.hasGroups(e) && !policy.Requestable(e.Tags)
}

// hasGroups reports whether an ENI has the security groups that a new one would get. If the
// configuration leaves the groups to the VPC, they are not known, and hasGroups reports true.
func (policy Policy) hasGroups(e registry.ENI) bool {
	missing := func(from []string) func(string) bool { return func(g string) bool { return !slices.Contains(from, g) } }
	return len(policy.SecurityGroups) == 0 ||
		!slices.ContainsFunc(e.Groups, missing(policy.SecurityGroups)) &&
			!slices.ContainsFunc(policy.SecurityGroups, missing(e.Groups))
}
