// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package iam computes exactly the permissions that the role of a node needs.
package iam

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// A Policy is an IAM policy document (IAM user guide, "Grammar of the IAM JSON policy language").
type Policy struct {
	Version   string
	Statement []Permission
}

// A Permission is a statement of a policy.
type Permission struct {
	SID       string `json:"Sid"`
	Effect    string
	Action    []string
	Resource  []string
	Condition map[string]map[string]string `json:",omitempty"` // operator, key, value
}

// Needs are the inputs for a policy.
type Needs struct {
	Networks []Network
	// Mode says what the node may change in EC2, for all networks. "": the configuration sets the mode of each network.
	Mode      lease.Provision
	ENIGC     bool   // also allow the calls of the command eni-gc
	Untagged  bool   // also allow changes of ENIs without our tags
	Partition string // aws, aws-cn, aws-us-gov and so on
}

// A Network is a network of the node's pods.
type Network struct {
	Pools    []lease.Policy
	Requests []lease.Permission // what pods may ask for
}

// Pools returns the pools of all networks that have one of the modes. If Needs.Mode is set, it is the mode of every
// network.
func (n Needs) Pools(modes ...lease.Provision) (all []lease.Policy) {
	for _, w := range n.Networks {
		for _, p := range w.Pools {
			if slices.Contains(modes, cmp.Or(n.Mode, p.Provision)) {
				all = append(all, p)
			}
		}
	}
	return all
}

// fullPools returns the pools for which the node may create ENIs.
func (n Needs) fullPools() []lease.Policy { return n.Pools(lease.ProvisionFull) }

// changingPools returns the pools for which the node may change something in EC2.
func (n Needs) changingPools() []lease.Policy {
	return n.Pools(lease.ProvisionFull, lease.ProvisionAssign)
}

// A request is something for which a network's pods may ask, together with the network's mode.
type request struct {
	lease.Permission
	mode lease.Provision
}

func (n Needs) requests() (all []request) {
	for _, w := range n.Networks {
		for _, r := range w.Requests {
			// all pools of a network have the same mode
			all = append(all, request{r, cmp.Or(n.Mode, w.Pools[0].Provision)})
		}
	}
	return all
}

// anyPool reports whether the function "is" returns true for at least one of the pools.
func anyPool(pools []lease.Policy, is func(lease.Policy) bool) bool {
	return slices.ContainsFunc(pools, is)
}

func hasFamily(pools []lease.Policy, f lease.Family) bool {
	return anyPool(pools, func(p lease.Policy) bool { return slices.Contains(p.Families, f) })
}

// Policy returns the policy that allows the calls of the node. The conditions and resource types are from the Service
// Authorization Reference, "Actions, resources, and condition keys for Amazon EC2".
func (n Needs) Policy() Policy {
	p := Policy{Version: "2012-10-17", Statement: []Permission{}}
	allow := func(sid string, condition map[string]map[string]string, actions, resources []string) {
		if len(actions) > 0 {
			p.Statement = append(p.Statement, Permission{sid, "Allow", prefixed("ec2:", actions), resources, condition})
		}
	}
	// Actions such as DescribeSubnets have no resource, so IAM allows no condition on a resource.
	allow("Look", nil, n.readActions(), []string{"*"})
	enis := n.arns("network-interface", "*")
	own := n.tagCondition(book.TagManaged)
	if anyPool(n.changingPools(), func(p lease.Policy) bool { return p.MinIndex == 0 }) {
		allow("Addresses", nil, n.assignActions(), enis) // no condition: the boot ENI has none of our tags
	} else {
		allow("Addresses", own, n.assignActions(), enis)
	}
	if full := n.fullPools(); len(full) > 0 {
		allow("NewENI", n.requestTagsCondition(), []string{"CreateNetworkInterface"}, enis)
		for i, pool := range full {
			sid := func(what string) string { return what + sidSuffix(i) }
			allow(sid("NewENIInSubnet"), tagValuesCondition(pool.SubnetTags), []string{"CreateNetworkInterface"},
				n.arns("subnet", "*"))
			allow(sid("NewENIInGroup"), nil, []string{"CreateNetworkInterface"},
				n.arns("security-group", pool.SecurityGroups...))
		}
		// The condition allows tags only for a new ENI, because the role must not give our tags to other ENIs.
		allow("TagNewENI", map[string]map[string]string{"StringEquals": {"ec2:CreateAction": "CreateNetworkInterface"}},
			[]string{"CreateTags"}, enis)
		allow("OwnENI", own, []string{"AttachNetworkInterface", "DetachNetworkInterface",
			"ModifyNetworkInterfaceAttribute", "DeleteNetworkInterface"}, enis)
		// A call of these actions also names an instance, which must be the one that makes the call.
		allow("AtInstance", n.ownInstanceCondition(), []string{"AttachNetworkInterface", "DetachNetworkInterface",
			"ModifyNetworkInterfaceAttribute"}, n.arns("instance", "*"))
	}
	n.allowRequests(allow)
	if n.ENIGC {
		allow("LeakedENI", absenceCondition("false", "aws:ResourceTag/"+book.TagInstance),
			[]string{"DeleteNetworkInterface"}, enis)
	}
	p.Statement = distinctPermissions(p.Statement)
	return p
}

// allowRequests allows the additional calls that the node needs for the requests of pods. It allows new ENIs in the
// subnets and security groups for which pods may ask. It also allows the attachment and detachment of ENIs for which
// pods may ask. The policy recognises these ENIs by their tags.
func (n Needs) allowRequests(
	allow func(sid string, condition map[string]map[string]string, actions, resources []string),
) {
	full := len(n.fullPools()) > 0
	for i, r := range n.requests() {
		sid := func(what string) string { return what + sidSuffix(i) }
		if r.mode == lease.ProvisionFull && len(r.Subnets) > 0 {
			allow(sid("RequestedSubnet"), nil, []string{"CreateNetworkInterface"}, n.arns("subnet", r.Subnets...))
		}
		if r.mode == lease.ProvisionFull && len(r.SecurityGroups) > 0 {
			allow(sid("RequestedGroup"), nil, []string{"CreateNetworkInterface"},
				n.arns("security-group", r.SecurityGroups...))
		}
		if r.mode == lease.ProvisionNone || len(r.ENIs) == 0 {
			continue
		}
		attach := []string{"AttachNetworkInterface", "DetachNetworkInterface"}
		allow(sid("RequestedENI"), tagValuesCondition(r.ENIs), attach, n.arns("network-interface", "*"))
		if !full { // if full is true, Policy has already added this statement
			allow("AtInstance", n.ownInstanceCondition(), attach, n.arns("instance", "*"))
		}
	}
}

// takesOver reports whether a pod may ask for an address of an ended instance. The node then takes the address from the
// ended instance.
func (n Needs) takesOver() bool {
	return slices.ContainsFunc(n.requests(), func(r request) bool {
		return r.Takeover && r.mode != lease.ProvisionNone
	})
}

// readActions returns the actions that change nothing.
func (n Needs) readActions() []string {
	var actions []string
	all, changes := n.Pools(lease.ProvisionFull, lease.ProvisionAssign, lease.ProvisionNone), len(n.changingPools()) > 0
	// the tags of an ENI show who owns it
	if changes || n.ENIGC || anyPool(all, func(p lease.Policy) bool { return p.Pools }) {
		actions = append(actions, "DescribeNetworkInterfaces")
	}
	if changes {
		actions = append(actions, "DescribeInstanceTypes")
	}
	// before the node takes over a chosen address, the node checks that the old instance has ended
	if n.takesOver() {
		actions = append(actions, "DescribeInstances")
	}
	asked := func(r request) bool { return r.mode == lease.ProvisionAssign }
	if len(n.fullPools()) > 0 || slices.ContainsFunc(n.requests(), asked) {
		actions = append(actions, "DescribeSubnets")
	}
	if anyPool(all, func(p lease.Policy) bool { return p.Peers }) {
		actions = append(actions, "DescribeVpcPeeringConnections")
	}
	return actions
}

// assignActions returns the actions that assign addresses to an ENI and unassign them. IPv6 addresses cost nothing, so
// the node keeps them as long as it keeps their ENI. Of its IPv6 addresses, the node unassigns only those for which
// pods have asked. With skipDeallocation, the node unassigns none of its own addresses. With takeover, the node also
// unassigns addresses of ended instances, even with skipDeallocation.
func (n Needs) assignActions() []string {
	var actions []string
	pools := n.changingPools()
	if hasFamily(pools, lease.IPv6) {
		actions = append(actions, "AssignIpv6Addresses")
	}
	if hasFamily(pools, lease.IPv4) {
		actions = append(actions, "AssignPrivateIpAddresses")
	}
	choose := slices.ContainsFunc(n.requests(), func(r request) bool { return r.IPs && r.mode != lease.ProvisionNone })
	takes := n.takesOver()
	unassigns := func(f lease.Family) bool {
		return anyPool(pools, func(p lease.Policy) bool { return (takes || !p.Keep) && slices.Contains(p.Families, f) })
	}
	if unassigns(lease.IPv4) {
		actions = append(actions, "UnassignPrivateIpAddresses")
	}
	if choose && unassigns(lease.IPv6) {
		actions = append(actions, "UnassignIpv6Addresses")
	}
	return actions
}

// arns returns the ARNs of the resources of a kind with these IDs. Without IDs, it returns one ARN that matches all
// resources of the kind.
func (n Needs) arns(kind string, ids ...string) []string {
	var arns []string
	for _, id := range slices.Sorted(slices.Values(ids)) {
		arns = append(arns, fmt.Sprintf("arn:%s:ec2:*:*:%s/%s", n.Partition, kind, id))
	}
	if arns == nil {
		return n.arns(kind, "*")
	}
	return arns
}

// ownInstanceCondition returns a condition: the instance that the call names (ec2:InstanceID) is the instance that
// makes the call (ec2:SourceInstanceARN, from the call's credentials). So no instance can detach an ENI from another
// instance. DeleteNetworkInterface does not have the key ec2:InstanceID. It does not need this condition, because EC2
// does not delete an attached ENI.
//
// AWS's own AWSEC2VssSnapshotPolicy has this condition (AWS managed policy reference). For the keys, see the IAM user
// guide, "EC2: Attach or detach volumes to an EC2 instance", and the Service Authorization Reference for EC2, resource
// type "instance".
func (n Needs) ownInstanceCondition() map[string]map[string]string {
	return map[string]map[string]string{"ArnLike": {"ec2:SourceInstanceARN": n.arns("instance",
		"${ec2:InstanceID}")[0]}}
}

// tagCondition returns the condition that an ENI has a tag, with any value. If pods use ENIs without our tags, it
// returns no condition.
func (n Needs) tagCondition(tag string) map[string]map[string]string {
	if n.Untagged {
		return nil
	}
	return absenceCondition("false", "aws:ResourceTag/"+tag)
}

// requestTagsCondition returns the condition that a new ENI gets our tags.
func (n Needs) requestTagsCondition() map[string]map[string]string {
	return absenceCondition("false", "aws:RequestTag/"+book.TagManaged, "aws:RequestTag/"+book.TagInstance)
}

// absenceCondition returns a condition on the condition keys of a call. If value is "true", the call must have none of
// the keys. If value is "false", the call must have all of the keys.
func absenceCondition(value string, keys ...string) map[string]map[string]string {
	null := map[string]string{}
	for _, k := range keys {
		null[k] = value
	}
	return map[string]map[string]string{"Null": null}
}

// tagValuesCondition returns the condition that a resource has the tags. It writes ${$}{ for ${, which IAM would read
// as the begin of a variable (IAM user guide, "Policy variables").
func tagValuesCondition(tags map[string]string) map[string]map[string]string {
	if len(tags) == 0 {
		return nil
	}
	equals := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		equals["aws:ResourceTag/"+k] = strings.ReplaceAll(tags[k], "${", "${$}{")
	}
	return map[string]map[string]string{"StringEquals": equals}
}

// distinctPermissions drops a permission if it differs from an earlier permission only in the Sid. Several pools may
// need the same permission.
func distinctPermissions(all []Permission) []Permission {
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(p Permission) bool {
		key := fmt.Sprint(p.Action, p.Resource, p.Condition) // fmt prints a map in the order of its keys
		was := seen[key]
		seen[key] = true
		return was
	})
}

// sidSuffix returns the end of a Sid, for the pool or the request with the index i. The end is a number, because a Sid
// can have only letters and digits.
func sidSuffix(i int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprint(i + 1)
}

func prefixed(prefix string, words []string) []string {
	all := slices.Clone(words)
	for i := range all {
		all[i] = prefix + all[i]
	}
	return all
}

// Actions returns the actions of the policy that doctor tries one by one: all except CreateTags, which belongs to
// CreateNetworkInterface.
func (n Needs) Actions() []string {
	names := map[string]bool{}
	for _, s := range n.Policy().Statement {
		for _, a := range s.Action {
			names[strings.TrimPrefix(a, "ec2:")] = true
		}
	}
	delete(names, "CreateTags")
	return slices.Sorted(maps.Keys(names))
}
