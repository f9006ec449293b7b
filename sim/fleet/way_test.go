// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A way is a configuration of all nodes, or the model of another plugin.
type way struct {
	name     string
	model    func(*account, *place) node // makes the model of another plugin; nil: the real code
	policy   lease.Policy
	instance string // instance type of the nodes; empty: the constant instanceType
	launched int    // number of prefixes of the launch template's ENI; 0: the template has no ENI for pods

	// The minimum number of changing calls of a node, for each action. The calls are for all its pods (needs), for the
	// replacement of its first pod (first), and for the replacement of all its pods (churns).
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

// ways are the compared ways. An ENI has 15 addresses or 14 prefixes. While the fleet replaces all pods of a node, 15
// of the node's addresses cool. So a node with 30 pods needs 45 addresses, and the three prefixes of a new ENI are
// enough. With the defaults, the pods have all addresses of two ENIs. So a new pod needs one more address before an old
// pod ends.
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
