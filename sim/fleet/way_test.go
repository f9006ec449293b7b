// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A way is a configuration of all nodes, or another plugin.
type way struct {
	name     string
	model    func(*account, *place) node // of another plugin; nil: the real code, with the policy
	policy   lease.Policy
	instance string // type of the nodes; empty: instanceType
	launched int    // prefixes of the ENI that the launch template makes; 0: it makes none

	// The changing calls that the pods of a node need at least: for all of them, for the replacement of the first, and
	// for the replacement of all.
	needs, first, churns map[string]int
}

// defaults is the policy of a configuration with only the required keys.
func defaults() lease.Policy {
	return lease.Policy{MinIndex: 1, Families: []lease.Family{lease.IPv4}, SubnetTags: subnetTags,
		Provision: lease.ProvisionFull,
		ReuseWait: time.Minute, Batch: 1, Timeout: time.Minute}
}

func with(change func(*lease.Policy)) lease.Policy {
	p := defaults()
	change(&p)
	return p
}

func enis(n int) map[string]int {
	return map[string]int{"CreateNetworkInterface": n, "AttachNetworkInterface": n,
		"ModifyNetworkInterfaceAttribute": n}
}

// ways are the compared ways. An ENI has 15 addresses or 14 prefixes. A replacement of all pods needs 15 more
// addresses, because as many cool: the three prefixes of a new ENI are enough. With the defaults, the pods have all
// addresses of two ENIs, and a new pod needs an address before the old pod ends.
var ways = []way{
	{name: "defaults", policy: defaults(), needs: enis(2), first: enis(1)},
	{name: "prefixes", policy: with(func(p *lease.Policy) { p.Prefixes = true }), needs: enis(1)},
	{name: "prefixes, warm", policy: with(func(p *lease.Policy) {
		p.Prefixes, p.Warm = true, registry.Warm{Min: 16, Max: 32}
	}),
		needs: enis(1)},
	{name: "provisioned", launched: 3, policy: with(func(p *lease.Policy) {
		p.Prefixes, p.Provision, p.Keep = true, lease.ProvisionNone, true
	})},
	{name: "the original", model: newOriginal, needs: map[string]int{"AssignPrivateIpAddresses": 27,
		"AttachNetworkInterface": 3},
		churns: map[string]int{"AssignPrivateIpAddresses": 30}},
	{name: "amazon-vpc-cni-k8s", model: newVPCCNI(1), needs: map[string]int{"AttachNetworkInterface": 2}},
	{name: "amazon-vpc-cni-k8s, prefixes", model: newVPCCNI(16), needs: map[string]int{"AssignPrivateIpAddresses": 2}},
}
