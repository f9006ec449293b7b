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

// The tags of an ENI that this suite has created. The call that creates the ENI also sets these tags. So an ENI without
// them has not leaked from here: it belongs to another owner.
const (
	TagManaged  = "cni-ipvlan-vpc-k8s/managed"
	TagInstance = "cni-ipvlan-vpc-k8s/instance"
	TagPool     = "cni-ipvlan-vpc-k8s/pool"

	// TagKeep is for a collection, which has no configuration. The tag has an effect as long as no ADD has used the
	// pool of the ENI since the node booted. "false" means: the collection may release what no pod uses. With any other
	// value, or without the tag, the collection waits for an ADD, whose configuration says what to keep. ENIs that no
	// growth has created have no such tag. If a configuration gets skipDeallocation later, that counts only from the
	// next ADD on.
	TagKeep = "cni-ipvlan-vpc-k8s/keep"
)

// Description returns the description of an ENI that this suite or the original creates for
// an instance.
func Description(instance string) string { return "CNI-ENI " + instance }

// PoolOf returns the pool in the ENI's tag.
func PoolOf(e aws.ENI) string {
	if pool := e.Tags[TagPool]; pool != lease.DefaultPool {
		return pool
	}
	return ""
}

// Foreign reports whether an ENI has the tag [TagNoManage]: its owner forbids changes.
func Foreign(e aws.ENI) bool { return e.Tags[TagNoManage] == "true" }

// TagNoManage is the tag by which the owner of an ENI forbids changes to this ENI. amazon-vpc-cni-k8s has it, too.
const TagNoManage = "node.k8s.amazonaws.com/no_manage"

// ForPods reports whether an ENI was created for pods, according to EC2. A growth or an
// operator has created it (new-interface, launch-template), or the original plugin. An
// operator may also add the tag later. The original's ENIs have only their description.
func ForPods(e aws.ENI) bool {
	return e.Tags[TagManaged] != "" || e.Tags[TagPool] != "" || e.Description == Description(e.Instance)
}

// GroupsOf returns the security groups of an ENI that others have attached: see
// lease.Policy.Misfit. For other ENIs it returns nil. The boot ENI has none of these groups,
// because it is the node's own.
func GroupsOf(e aws.ENI) []string {
	if ForPods(e) {
		return nil
	}
	return slices.Sorted(slices.Values(e.SecurityGroups))
}

// MadeFor returns the instance for which this suite or the original has created an ENI, or ""
// if that is not known.
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

// Untagged reports whether an ENI lacks the tag [TagManaged]. If the role may not create tags, a Provision and a
// growth make such ENIs. The ENIs of the original lack it, too.
func Untagged(e aws.ENI) bool { return e.Tags[TagManaged] == "" }

// TagText formats tags for people.
func TagText(tags map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, k+"="+tags[k])
	}
	return strings.Join(all, ", ")
}
