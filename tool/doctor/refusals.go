// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkRefusals reports EC2's refusals that the registry records.
func (p *Node) checkRefusals(context.Context) ([]Finding, error) {
	var found []Finding
	now := p.now()
	for _, action := range slices.Sorted(maps.Keys(p.state.NotBefore)) {
		if until := p.state.NotBefore[action]; until.After(now) {
			found = append(found, Finding{Severity: warning, About: "ec2:" + action,
				Means: "EC2 throttles this action for the account. This node does not call the action for another " +
					view.Brief(until.Sub(now)),
				Do: "to make fewer calls, use larger batches (ipBatchSize), prefixes, or ENIs from the launch " +
					"template"})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.state.Refusals)) {
		if r := p.state.Refusals[key]; r.Until.After(now) {
			_, about, err := call.Refused(p.state, key)
			until := ". Until the node asks again, it tries the action on other ENIs or subnets"
			if about == "" {
				until = ". Until the node asks again, it does not try this action"
			}
			found = append(found, Finding{Severity: warning, About: cmp.Or(about, "EC2"), Means: err.Error(),
				Do: cmp.Or(ipam.Hint(err), "nothing: the node asks again") + until})
		}
	}
	for _, concern := range slices.Sorted(maps.Keys(p.state.Failures)) {
		found = append(found, p.failureFinding(concern, now))
	}
	if until := p.state.Instance.FullUntil; until.After(now) {
		found = append(found, Finding{Severity: warning, About: p.state.Instance.ID,
			Means: "EC2 has refused to attach another ENI to this instance. This node asks again in " +
				view.Brief(until.Sub(now)),
			Do: "detach ENIs that serve no pods. Or detach EBS volumes, because on most Nitro types, ENIs and " +
				"volumes share one limit. Or use prefixes. Or lower --max-pods of the kubelet to the number that " +
				cli.Name + " maxpods prints"})
	}
	if until := p.state.Instance.QuotaUntil; until.After(now) {
		found = append(found, Finding{Severity: warning, About: "quota",
			Means: "the account can have no more ENIs in this region. This node asks again in " +
				view.Brief(until.Sub(now)),
			Do: "delete unused ENIs (" + cli.Name + " eni-gc), or ask AWS to raise the quota of network interfaces"})
	}
	return found, nil
}

// failureFinding returns the finding about the last failed ADD of a network and a pool. An ADD of this pool that
// succeeds removes the failure from the registry. If the subnet is full, such an ADD removes the failure only after the
// time in the field Until. Any ADD removes a failure that is older than [registry.MostWait]. The finding is only a note
// if the pool has free addresses again, or if a pod has asked for something that it cannot get.
func (p *Node) failureFinding(concern string, now time.Time) Finding {
	f := p.state.Failures[concern]
	network, pool, _ := strings.Cut(concern, "/")
	last := "was " + view.Brief(max(now.Sub(f.Since), 0)) + " ago: " + f.Text
	found := Finding{Severity: severe, About: "pool " + conf.PoolName(pool) + " of " + network,
		Means: "ADDs fail. The last failed ADD " + last, Do: cmp.Or(f.Hint, "see the events of the pods")}
	if _, derived := lease.Derived(pool); derived || strings.Contains(pool, "=") {
		found.Severity, found.Means = note, "a pod asks for something that it cannot get. The last failed ADD "+last
		return found
	}
	if p.hasFree(network, pool, now) {
		found.Severity, found.Means = note, "the pool has free addresses again. The last failed ADD "+last
		found.Do = "nothing now. If pods often wait for addresses: " + found.Do
	}
	return found
}

// hasFree reports whether an ADD of the network would find addresses in the pool.
func (p *Node) hasFree(network, pool string, now time.Time) bool {
	for _, policy := range p.conflists.PoliciesOf(network) {
		if eni, _ := lease.Candidates(p.state, policy, now); policy.Pool == pool && eni != "" {
			return true
		}
	}
	return false
}
