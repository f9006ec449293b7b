// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
)

// EC2's limits for the tags of a resource (API reference, Tag, and user guide, "Tag restrictions").
const (
	mostTags     = 50
	longestKey   = 127 // in characters
	longestValue = 256
)

// ourTags are the tags that each new ENI has in any case.
var ourTags = []string{book.TagManaged, book.TagInstance, book.TagPool, book.TagKeep}

// ec2 reviews what EC2 would refuse. The plugin sends that with the first ENI that it needs, and no pod of the pool
// gets an address.
func (r *review) ec2(where string, c *lease.Config) {
	if c.MaxENIs == 1 && c.InterfaceIndex > 0 && (c.Provision == "" || c.Provision == string(lease.ProvisionFull)) {
		r.wrong(where, "maxENIs: 1: it counts the boot ENI, which has no addresses for pods if interfaceIndex is %d: "+
			"want 2 or more", c.InterfaceIndex)
	}
	r.newENI(where, "", c.PoolConfig)
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		r.newENI(where, "pools: "+name+": ", c.Pools[name])
	}
}

// newENI reviews what a pool wants of its ENIs.
func (r *review) newENI(where, at string, p lease.PoolConfig) {
	m := values.Mistakes{Within: at}
	if m.IDs("secGroupIds", "sg", p.SecGroupIDs); m.Err() != nil {
		for line := range strings.SplitSeq(m.Err().Error(), "\n") {
			r.wrong(where, "%s", line)
		}
	}
	if most := mostTags - len(ourTags); len(p.ENITags) > most {
		r.wrong(where, "%seniTags: %d tags: EC2 allows %d for an ENI, and the plugin sets %d itself: want at most %d",
			at, len(p.ENITags), mostTags, len(ourTags), most)
	}
	for _, key := range slices.Sorted(maps.Keys(p.ENITags)) {
		if why := tagFault(key, p.ENITags[key]); why != "" {
			r.wrong(where, "%seniTags: %q: %s", at, key, why)
		}
	}
}

// tagFault says why an ENI cannot have a tag, or "".
func tagFault(key, value string) string {
	switch {
	case key == "":
		return "a tag needs a key"
	case len(key) >= 4 && strings.EqualFold(key[:4], "aws:"):
		return "only AWS sets tags that begin with aws: want another key"
	case utf8.RuneCountInString(key) > longestKey:
		return "the key of a tag has 127 characters at most"
	case utf8.RuneCountInString(value) > longestValue:
		return "the value of a tag has 256 characters at most"
	case key == book.TagNoManage:
		return "no program changes an ENI with this tag: after the next boot, the node would not use its own ENIs " +
			"any more: remove the tag"
	case slices.Contains(ourTags, key):
		return "the plugin sets this tag itself: remove it"
	}
	return ""
}
