// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"maps"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkTimers checks that collections run, and that pools are refilled.
func (p *Node) checkTimers(ctx context.Context) ([]Finding, error) {
	why := map[string]string{"cni-gc.timer": "leases of pods that ended without a DEL stay, and addresses and ENIs are never released"}
	if p.config != nil && slices.ContainsFunc(p.config.Policies(), func(q lease.Policy) bool { return q.Warm.Min > 0 }) {
		why["cni-warm.path"] = "nobody refills the pools to warm.min: ADDs wait for EC2"
	}
	if p.root == "" && view.CollectedLately() {
		delete(why, "cni-gc.timer") // something else runs it
	}
	if p.root == "" && view.MaintainedLately() {
		delete(why, "cni-warm.path") // maintain refills
	}
	var found []Finding
	for _, unit := range slices.Sorted(maps.Keys(why)) {
		_, installed := p.lookUp("systemd/system", unit)
		if installed && p.enabled(unit) && (!p.systemd() || p.runs(ctx, unit)) {
			continue
		}
		a := Finding{Severity: severe, About: unit, Means: "it is not enabled, or not active: " + why[unit], Do: "systemctl enable --now " + unit, fix: p.enable(unit)}
		if !installed {
			a.Means, a.Do, a.fix = "it is not installed: "+why[unit], "install the package; or without systemd, run "+cli.Name+" maintain", nil
		}
		found = append(found, a)
	}
	return found, nil
}
