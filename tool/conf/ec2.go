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

// ourTags are the tags that the plugin sets on each new ENI.
var ourTags = []string{book.TagManaged, book.TagInstance, book.TagPool, book.TagKeep}

// reviewEC2 looks for values that make EC2 refuse the first new ENI of a pool.
func (r *review) reviewEC2(where string, c *lease.Config) {
	if c.MaxENIs == 1 && c.InterfaceIndex > 0 && (c.Provision == "" || c.Provision == string(lease.ProvisionFull)) {
		r.report(where, "maxENIs: 1: want 2 or more, because maxENIs counts the boot ENI, which has no addresses for "+
			"pods if interfaceIndex is %d", c.InterfaceIndex)
	}
	r.reviewNewENI(where, "", c.PoolConfig)
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		r.reviewNewENI(where, "pools: "+name+": ", c.Pools[name])
	}
}

// reviewNewENI reviews the security groups and tags that a pool gives to new ENIs.
func (r *review) reviewNewENI(where, at string, p lease.PoolConfig) {
	m := values.Mistakes{Within: at}
	m.IDs("secGroupIds", "sg", p.SecGroupIDs)
	r.reportLines(where, m.Err())
	if most := mostTags - len(ourTags); len(p.ENITags) > most {
		r.report(where, "%seniTags: %d tags: want at most %[5]d, because EC2 allows %[3]d tags for an ENI, and the "+
			"plugin itself sets %[4]d of them",
			at, len(p.ENITags), mostTags, len(ourTags), most)
	}
	for _, key := range slices.Sorted(maps.Keys(p.ENITags)) {
		if why := tagFault(key, p.ENITags[key]); why != "" {
			r.report(where, "%seniTags: %q: %s", at, key, why)
		}
	}
}

// tagFault returns why an ENI cannot have a tag, or "" if the ENI can have it.
func tagFault(key, value string) string {
	switch {
	case key == "":
		return "a tag needs a key"
	case len(key) >= 4 && strings.EqualFold(key[:4], "aws:"):
		return "want another key, because only AWS sets tags that begin with aws:"
	case utf8.RuneCountInString(key) > longestKey:
		return "want a key of at most 127 characters"
	case utf8.RuneCountInString(value) > longestValue:
		return "want a value of at most 256 characters"
	case key == book.TagNoManage:
		return "remove this tag, because no program may change an ENI with this tag. After the next boot, the " +
			"node would no longer use its own ENIs"
	case slices.Contains(ourTags, key):
		return "remove this tag, because the plugin sets it itself"
	}
	return ""
}
