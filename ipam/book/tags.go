// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"maps"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// The tags of an ENI that this suite has created. EC2 sets these tags in the call that creates the ENI, so no second
// call is needed. If the role has no permission to create tags, the node's ENIs have no tags: see Untagged.
const (
	TagManaged  = "cni-ipvlan-vpc-k8s/managed"
	TagInstance = "cni-ipvlan-vpc-k8s/instance"
	TagPool     = "cni-ipvlan-vpc-k8s/pool"

	// TagKeep is for a collection that does not know all conflists: see heedConflists in package less. Between a boot
	// and the first ADD of the pool, such a collection releases the ENI and its addresses only if the value is "false".
	// The first ADD of the pool records in the registry the values of the keys "skipDeallocation" and "warm". From then
	// on, collections use this record, and not the tag. Only ENIs that a growth has created have this tag. The value
	// never changes, even if an operator later adds "skipDeallocation".
	TagKeep = "cni-ipvlan-vpc-k8s/keep"
)

// Description returns the description of an ENI that this suite or the original plugin creates for an instance.
func Description(instance string) string { return "CNI-ENI " + instance }

// PoolOf returns the pool that the ENI's tag names, or "" for the default pool.
func PoolOf(e aws.ENI) string {
	if pool := e.Tags[TagPool]; pool != lease.DefaultPool {
		return pool
	}
	return ""
}

// Foreign reports whether an ENI has the tag [TagNoManage]: its owner forbids changes.
func Foreign(e aws.ENI) bool { return e.Tags[TagNoManage] == "true" }

// TagNoManage is the tag by which the owner of an ENI forbids changes to this ENI. amazon-vpc-cni-k8s uses the same
// tag.
const TagNoManage = "node.k8s.amazonaws.com/no_manage"

// ForPods reports whether the tags or the description of an ENI show that it was created for pods. A growth, the
// original plugin, or an operator (with the command new-interface or launch-template) creates such an ENI. The original
// plugin sets only the description. An operator may also add [TagPool] to an ENI later.
func ForPods(e aws.ENI) bool {
	return taggedForPods(e) || e.Description == Description(e.Instance)
}

func taggedForPods(e aws.ENI) bool { return e.Tags[TagManaged] != "" || e.Tags[TagPool] != "" }

// PoolUnknown reports whether only the description shows that an ENI was created for pods. Such an ENI was created by
// the original plugin, or by a node whose role has no permission to create tags.
func PoolUnknown(e aws.ENI) bool { return ForPods(e) && !taggedForPods(e) }

// GroupsOf returns the security groups that the registry records for an ENI. lease.Policy.Misfit compares them with the
// configuration. If the tags show that the ENI was created for pods, GroupsOf returns nil, so that Misfit compares no
// groups. No caller passes the boot ENI.
func GroupsOf(e aws.ENI) []string {
	if taggedForPods(e) {
		return nil
	}
	return slices.Sorted(slices.Values(e.SecurityGroups))
}

// MadeFor returns the ID of the instance for which this suite or the original plugin has created an ENI. If neither has
// created the ENI, MadeFor returns "".
func MadeFor(e aws.ENI) string {
	if e.Tags[TagInstance] != "" {
		return e.Tags[TagInstance]
	}
	instance, _ := strings.CutPrefix(e.Description, Description(""))
	if !strings.HasPrefix(instance, "i-") {
		return ""
	}
	return instance
}

// Untagged reports whether an ENI lacks the tag [TagManaged]. The original plugin set no tags, and a role may lack the
// permission to create tags.
func Untagged(e aws.ENI) bool { return e.Tags[TagManaged] == "" }

// TagText formats tags for people.
func TagText(tags map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, k+"="+tags[k])
	}
	return strings.Join(all, ", ")
}
