// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"debug/buildinfo"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkTimers checks that collections run, and that pools are refilled.
func (p *Node) checkTimers(ctx context.Context) ([]Finding, error) {
	why := map[string]string{"cni-gc.timer": "If a pod ends without a DEL, its lease stays. Addresses and ENIs are " +
		"never released"}
	if means := p.withoutWarm(); len(means) > 0 {
		why["cni-warm.path"] = strings.Join(means, ". ")
	}
	if p.root == "" && view.CollectedLately() {
		delete(why, "cni-gc.timer") // another program collects
	}
	if p.root == "" && view.MaintainedLately() {
		delete(why, "cni-warm.path") // the command "maintain" is running, and does the work of this unit
	}
	var found []Finding
	for _, unit := range slices.Sorted(maps.Keys(why)) {
		_, installed := p.lookUp("systemd/system", unit)
		if installed && p.isEnabled(unit) && (!p.hasSystemd() || p.isActive(ctx, unit)) {
			continue
		}
		a := Finding{Severity: severe, About: unit, Means: "this unit is not enabled, or not active. " + why[unit],
			Do: "systemctl enable --now " + unit, fix: p.enableFix(unit)}
		if !installed {
			a.Means, a.Do, a.fix = "this unit is not installed. "+why[unit],
				"install the package. Or, on a node without systemd, run "+cli.Name+" maintain", nil
		}
		found = append(found, a)
	}
	return slices.Concat(found, p.checkTool(), p.checkRepairs()), nil
}

// withoutWarm returns the consequences of a missing cni-warm.path, or nothing if the configuration does not need this
// unit. The unit also starts cni-release.path.
func (p *Node) withoutWarm() (means []string) {
	if slices.ContainsFunc(p.conflists.Pools(), func(q lease.Policy) bool { return q.Warm.Min > 0 }) {
		means = append(means, "No process refills the pools to warm.min, so ADDs wait for EC2")
	}
	if slices.ContainsFunc(p.ours, releasesRequested) {
		means = append(means, "No process releases at once the addresses and ENIs for which pods have asked. So a pod "+
			"that moves to another node waits there for the next collection on this node")
	}
	return means
}

// releasesRequested reports whether the node releases addresses or ENIs for which pods of the network have asked. The
// node does this if pods may ask for an address or an ENI, and the provision is not "none".
func releasesRequested(l conf.List) bool {
	return l.IPAM.Policies()[0].Provision != lease.ProvisionNone && slices.ContainsFunc(l.IPAM.Permissions,
		func(r lease.Permission) bool { return r.IPs || len(r.ENIs) > 0 })
}

// checkTool checks which program systemd starts for our units. The units name the tool without a directory
// (systemd.exec(5), ExecSearchPath=). systemd searches /usr/local/bin before /usr/bin. The original project has its
// tool in /usr/local/bin, and a package installs ours in /usr/bin.
func (p *Node) checkTool() []Finding {
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} {
		file := p.pathOf(filepath.Join(dir, cli.Program))
		info, err := buildinfo.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && info.Main.Path == modulePath:
			return nil
		}
		return []Finding{{Severity: severe, About: file,
			Means: "our units run this program, which is not of this project. It may be the original's tool, whose " +
				"registry-gc does not know our leases, and may release an address of a new pod",
			Do: "delete this program. If no other directory has our program, install the package again"}}
	}
	return nil
}

// repairCommand matches the command repair, with either name of the tool.
var repairCommand = regexp.MustCompile(`\bcni-(ipvlan-vpc-k8s-)?tool repair\b`)

// checkRepairs checks that cni-gc.service runs repair, too. The cni-gc.service in the original project's README does
// not run repair. If this file is in /etc, it hides the unit of our package.
func (p *Node) checkRepairs() []Finding {
	const unit = "cni-gc.service"
	file, installed := p.lookUp("systemd/system", unit)
	if !installed {
		return nil
	}
	for _, f := range append(p.dropIns("systemd/system", unit+".d"), file) {
		if text, err := os.ReadFile(f); err != nil || repairCommand.Match(text) {
			return nil
		}
	}
	return []Finding{{Severity: warning, About: file,
		Means: "this unit does not run repair. If another program deletes our objects on the node, the objects are " +
			"missing until the next ADD, or until the pods end",
		Do: "if this file hides the unit of the package, delete the file, and run systemctl daemon-reload. Otherwise " +
			"add ExecStartPre=-" +
			cli.Name + " repair"}}
}
