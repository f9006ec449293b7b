// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// An engine is a program that enforces NetworkPolicy on a node. It makes a chain of nftables, or pins objects of BPF.
// The field "chain" is a pattern for the chain's name. The field "pins" is a pattern for the paths of the objects. For
// both patterns, see [path.Match]. The names come from the source code of the engines.
type engine struct{ name, chain, pins string }

var engines = []engine{
	{name: "kube-network-policies", chain: "inet kube-network-policies *"},
	{name: "kube-router", chain: "ip* filter KUBE-ROUTER-FORWARD"},
	{name: "Calico", chain: "ip* filter cali-FORWARD"},
	{name: "Calico", chain: "ip* calico *"},
	{name: "aws-network-policy-agent", pins: "globals/aws/programs/*_handle_*"},
	{name: "Cilium", pins: "tc/globals/cilium_policy*"},
}

// bpfFS is where BPF's objects are pinned. Tests change it.
var bpfFS = "/sys/fs/bpf"

// checkPolicy looks for engines on a node that has pools with ipvlan. Engines do not see the packets of ipvlan pods,
// and do not say so. An operator then wrongly believes that a NetworkPolicy restricts these pods.
func (p *Node) checkPolicy(context.Context) ([]Finding, error) {
	_, slaves := p.poolsByPath()
	if len(slaves) == 0 {
		return nil, nil
	}
	chains, err := p.pool.Host.Chains()
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, e := range engines {
		f := unrestrictedFinding(e.name, slaves)
		same := func(other Finding) bool { return other.About == f.About }
		if (e.hasChain(chains) || e.hasPins()) && !slices.ContainsFunc(found, same) {
			found = append(found, f)
		}
	}
	return found, nil
}

// unrestrictedFinding returns the finding about an engine that does not see the packets of the pools with ipvlan.
func unrestrictedFinding(engine string, pools []string) Finding {
	return Finding{Severity: warning, About: engine,
		Means: "this engine for NetworkPolicy is, or was, on the node. It does not see packets between ipvlan pods " +
			"and other pods or hosts, so NetworkPolicies do not restrict these packets. The pools with ipvlan are: " +
			strings.Join(pools, ", "),
		Do: `give namespaces with a NetworkPolicy a pool with "dataPath": "veth", and start their pods again ` +
			`(docs/network-policy.md). If no NetworkPolicy selects pods of the pools with ipvlan, do nothing`}
}

func (e engine) hasChain(chains []string) bool {
	return slices.ContainsFunc(chains, func(name string) bool { is, _ := path.Match(e.chain, name); return is })
}

func (e engine) hasPins() bool {
	pins, _ := filepath.Glob(filepath.Join(bpfFS, e.pins))
	return e.pins != "" && len(pins) > 0
}
