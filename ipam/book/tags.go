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

// The tags of an ENI that this suite has created. The call that creates the ENI also sets these tags. So the ENI has
// the tags even if the process is killed right after the call. If the role has no permission to create tags, the ENI
// has no tags: see Untagged.
const (
	TagManaged  = "cni-ipvlan-vpc-k8s/managed"
	TagInstance = "cni-ipvlan-vpc-k8s/instance"
	TagPool     = "cni-ipvlan-vpc-k8s/pool"

	// TagKeep is a tag for a collection that does not know all conflists: see heedConflists in package less. The tag
	// shows what this collection must keep of an ENI. After a boot, the collection follows the tag until the first ADD
	// of the ENI's pool. This ADD records what its configuration says, and from then on, the collection follows that
	// record. The value "false" allows the collection to release the ENI and its addresses if no pod uses them. If the
	// tag has any other value, or is missing, the collection releases nothing of the ENI before the first ADD. Only
	// ENIs that a growth has created have this tag. The tag never changes. So if an operator later adds
	// skipDeallocation to the configuration, the tag does not show this key. A collection that does not know all
	// conflists follows the key only after the next ADD has recorded it.
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

// ForPods reports whether the tags or the description of an ENI show that it was created for pods. A growth, an
// operator (with new-interface or launch-template) or the original plugin has created such an ENI. An ENI of the
// original plugin has no tags, only the description. An operator may also add [TagPool] to an ENI later.
func ForPods(e aws.ENI) bool {
	return taggedForPods(e) || e.Description == Description(e.Instance)
}

func taggedForPods(e aws.ENI) bool { return e.Tags[TagManaged] != "" || e.Tags[TagPool] != "" }

// PoolUnknown reports whether only the description shows that an ENI was created for pods. Such an ENI was created by
// the original plugin, or by a node whose role has no permission to create tags.
func PoolUnknown(e aws.ENI) bool { return ForPods(e) && !taggedForPods(e) }

// GroupsOf returns which security groups the registry must record for an ENI. The method lease.Policy.Misfit later
// compares these groups with the configuration. But if the tags show that the ENI was created for pods, Misfit must
// compare no groups, so GroupsOf returns nil. No caller calls GroupsOf for the boot ENI, because the boot ENI belongs
// to the node itself.
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

// Untagged reports whether an ENI lacks the tag [TagManaged]. All ENIs of the original plugin lack this tag. If the
// role has no permission to create tags, the ENIs of a Provision or a growth also lack the tag.
func Untagged(e aws.ENI) bool { return e.Tags[TagManaged] == "" }

// TagText formats tags for people.
func TagText(tags map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, k+"="+tags[k])
	}
	return strings.Join(all, ", ")
}
