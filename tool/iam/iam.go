// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package iam has the permissions that the role of a node needs, and no others.
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

// A Policy is a policy document (IAM user guide, "Grammar of the IAM JSON policy language").
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

// Needs are what a policy is made from.
type Needs struct {
	Networks  []Network
	Mode      lease.Provision // what the node may ask EC2 for; empty: what each network says
	ENIGC     bool            // the command eni-gc is allowed, too
	Untagged  bool            // ENIs without our tags, too
	Partition string          // aws, aws-cn, aws-us-gov and so on
}

// A Network is a network of the node's pods.
type Network struct {
	Pools    []lease.Policy
	Requests []lease.Permission // what pods may ask for
}

// Pools returns the pools of the networks whose mode is one of these.
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

// full returns the pools that get new ENIs.
func (n Needs) full() []lease.Policy { return n.Pools(lease.ProvisionFull) }

// changing returns the pools for which the node may change something in EC2.
func (n Needs) changing() []lease.Policy { return n.Pools(lease.ProvisionFull, lease.ProvisionAssign) }

// A request is what pods of a network may ask for.
type request struct {
	lease.Permission
	mode lease.Provision // of the network
}

func (n Needs) requests() (all []request) {
	for _, w := range n.Networks {
		for _, r := range w.Requests {
			// it is the same for all pools of a network
			all = append(all, request{r, cmp.Or(n.Mode, w.Pools[0].Provision)})
		}
	}
	return all
}

// anyOf reports whether any of the pools is so.
func anyOf(pools []lease.Policy, is func(lease.Policy) bool) bool {
	return slices.ContainsFunc(pools, is)
}

func family(pools []lease.Policy, f lease.Family) bool {
	return anyOf(pools, func(p lease.Policy) bool { return slices.Contains(p.Families, f) })
}

// Policy allows what the node calls. The conditions and resource types of an action: Service
// Authorization Reference, "Actions, resources, and condition keys for Amazon EC2". AWS's own
// AmazonEKSNetworkingPolicy binds the same actions to tags in the same way.
func (n Needs) Policy() Policy {
	p := Policy{Version: "2012-10-17", Statement: []Permission{}}
	allow := func(sid string, condition map[string]map[string]string, actions, resources []string) {
		if len(actions) > 0 {
			p.Statement = append(p.Statement, Permission{sid, "Allow", prefixed("ec2:", actions), resources, condition})
		}
	}
	// Descriptions have no resource, and no condition on one.
	allow("Look", nil, n.looks(), []string{"*"})
	enis := n.arns("network-interface", "*")
	own := n.tagged(book.TagManaged)
	if anyOf(n.changing(), func(p lease.Policy) bool { return p.MinIndex == 0 }) {
		allow("Addresses", nil, n.assigns(), enis) // the boot ENI's, too, which comes without our tags
	} else {
		allow("Addresses", own, n.assigns(), enis)
	}
	if full := n.full(); len(full) > 0 {
		allow("NewENI", n.requested(), []string{"CreateNetworkInterface"}, enis)
		for i, pool := range full {
			sid := func(what string) string { return what + suffix(i) }
			allow(sid("NewENIInSubnet"), has(pool.SubnetTags), []string{"CreateNetworkInterface"},
				n.arns("subnet", "*"))
			allow(sid("NewENIInGroup"), nil, []string{"CreateNetworkInterface"},
				n.arns("security-group", pool.SecurityGroups...))
		}
		// Not to give the tag to what others have made.
		allow("TagNewENI", map[string]map[string]string{"StringEquals": {"ec2:CreateAction": "CreateNetworkInterface"}},
			[]string{"CreateTags"}, enis)
		allow("OwnENI", own, []string{"AttachNetworkInterface", "DetachNetworkInterface",
			"ModifyNetworkInterfaceAttribute", "DeleteNetworkInterface"}, enis)
		// These are about the instance as well: it has to be the one that asks.
		allow("AtInstance", n.self(), []string{"AttachNetworkInterface", "DetachNetworkInterface",
			"ModifyNetworkInterfaceAttribute"}, n.arns("instance", "*"))
	}
	n.allowRequests(allow)
	if n.ENIGC {
		allow("LeakedENI", absentIs("false", "aws:ResourceTag/"+book.TagInstance),
			[]string{"DeleteNetworkInterface"}, enis)
	}
	p.Statement = distinct(p.Statement)
	return p
}

// allowRequests allows the further calls that requests of pods need. The statements allow the subnets and groups that
// the configuration names, and ENIs with the tags of the configuration. Nothing except attaching is allowed for these
// ENIs.
func (n Needs) allowRequests(
	allow func(sid string, condition map[string]map[string]string, actions, resources []string),
) {
	full := len(n.full()) > 0
	for i, r := range n.requests() {
		sid := func(what string) string { return what + suffix(i) }
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
		allow(sid("RequestedENI"), has(r.ENIs), attach, n.arns("network-interface", "*"))
		if !full { // otherwise it is there already
			allow("AtInstance", n.self(), attach, n.arns("instance", "*"))
		}
	}
}

// looks are the actions that only look.
func (n Needs) looks() []string {
	var actions []string
	all, changes := n.Pools(lease.ProvisionFull, lease.ProvisionAssign, lease.ProvisionNone), len(n.changing()) > 0
	// to tell apart whose an ENI is, by its tags
	if changes || n.ENIGC || anyOf(all, func(p lease.Policy) bool { return p.Pools }) {
		actions = append(actions, "DescribeNetworkInterfaces")
	}
	if changes {
		actions = append(actions, "DescribeInstanceTypes")
	}
	// whether the instance has ended that had a chosen address
	if slices.ContainsFunc(n.requests(), func(r request) bool { return r.Takeover && r.mode != lease.ProvisionNone }) {
		actions = append(actions, "DescribeInstances")
	}
	asked := func(r request) bool { return r.mode == lease.ProvisionAssign }
	if len(n.full()) > 0 || slices.ContainsFunc(n.requests(), asked) {
		actions = append(actions, "DescribeSubnets")
	}
	if anyOf(all, func(p lease.Policy) bool { return p.Peers }) {
		actions = append(actions, "DescribeVpcPeeringConnections")
	}
	return actions
}

// assigns are the actions that give an ENI addresses, and take them back. IPv6 addresses
// cost nothing, and stay as long as their ENI, except for those that pods choose.
func (n Needs) assigns() []string {
	var actions []string
	pools := n.changing()
	if family(pools, lease.IPv6) {
		actions = append(actions, "AssignIpv6Addresses")
	}
	if family(pools, lease.IPv4) {
		actions = append(actions, "AssignPrivateIpAddresses")
	}
	if anyOf(pools, func(p lease.Policy) bool { return !p.Keep && slices.Contains(p.Families, lease.IPv4) }) {
		actions = append(actions, "UnassignPrivateIpAddresses")
	}
	choose := slices.ContainsFunc(n.requests(), func(r request) bool { return r.IPs && r.mode != lease.ProvisionNone })
	if choose && anyOf(pools, func(p lease.Policy) bool { return !p.Keep && slices.Contains(p.Families, lease.IPv6) }) {
		actions = append(actions, "UnassignIpv6Addresses")
	}
	return actions
}

// arns are resources of a type: the resources with the IDs, or all if there is no ID.
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

// self is the condition that an instance asks about itself. The metadata service gives out credentials for the
// instance's role, and these say which instance got them. EC2 says which instance a call is about. So no instance
// detaches an ENI from another one. For its deletion there is no such key: EC2 refuses that as long as the ENI is
// attached.
//
// AWS's own AWSEC2VssSnapshotPolicy binds calls of an instance in the same words (AWS managed policy reference). The
// keys are in the IAM user guide, "EC2: Attach or detach volumes to an EC2 instance". They are also in the Service
// Authorization Reference, at the resource type instance.
func (n Needs) self() map[string]map[string]string {
	return map[string]map[string]string{"ArnLike": {"ec2:SourceInstanceARN": n.arns("instance",
		"${ec2:InstanceID}")[0]}}
}

// tagged is the condition that an ENI has a tag, whatever its value.
func (n Needs) tagged(tag string) map[string]map[string]string {
	if n.Untagged {
		return nil
	}
	return absentIs("false", "aws:ResourceTag/"+tag)
}

// requested is the condition that a new ENI gets our tags.
func (n Needs) requested() map[string]map[string]string {
	return absentIs("false", "aws:RequestTag/"+book.TagManaged, "aws:RequestTag/"+book.TagInstance)
}

// absentIs is the condition that keys are absent, or that none is.
func absentIs(value string, keys ...string) map[string]map[string]string {
	null := map[string]string{}
	for _, k := range keys {
		null[k] = value
	}
	return map[string]map[string]string{"Null": null}
}

// has is the condition that a resource has the tags. What looks like a variable of IAM
// stands for itself (IAM user guide, "Policy variables": ${$}).
func has(tags map[string]string) map[string]map[string]string {
	if len(tags) == 0 {
		return nil
	}
	equals := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		equals["aws:ResourceTag/"+k] = strings.ReplaceAll(tags[k], "${", "${$}{")
	}
	return map[string]map[string]string{"StringEquals": equals}
}

// distinct leaves out permissions that differ from an earlier one in their names alone. Permissions of pools may be
// such.
func distinct(all []Permission) []Permission {
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(p Permission) bool {
		key := fmt.Sprint(p.Action, p.Resource, p.Condition) // fmt sorts maps
		was := seen[key]
		seen[key] = true
		return was
	})
}

// suffix distinguishes the statements of further pools: a Sid is letters and digits.
func suffix(i int) string {
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

// Actions are the actions of the policy, except for CreateTags, which is tried with CreateNetworkInterface.
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
