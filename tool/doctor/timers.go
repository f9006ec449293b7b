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

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkTimers checks that collections run, and that pools are refilled.
func (p *Node) checkTimers(ctx context.Context) ([]Finding, error) {
	why := map[string]string{"cni-gc.timer": "leases of pods that ended without a DEL stay, and addresses and ENIs " +
		"are never released"}
	if slices.ContainsFunc(p.conflists.Pools(), func(q lease.Policy) bool { return q.Warm.Min > 0 }) {
		why["cni-warm.path"] = "no process refills the pools to warm.min: ADDs wait for EC2"
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
		a := Finding{Severity: severe, About: unit, Means: "it is not enabled, or not active: " + why[unit],
			Do: "systemctl enable --now " + unit, fix: p.enable(unit)}
		if !installed {
			a.Means, a.Do, a.fix = "it is not installed: "+why[unit], "install the package; or without systemd, run "+
				cli.Name+" maintain", nil
		}
		found = append(found, a)
	}
	return slices.Concat(found, p.checkTool(), p.checkRepairs()), nil
}

// checkTool looks at the program that our units run by its name. A package has it in /usr/bin, and the original's is in
// /usr/local/bin, where systemd looks first (systemd.exec(5), ExecSearchPath=).
func (p *Node) checkTool() []Finding {
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} {
		file := p.path(filepath.Join(dir, cli.Program))
		info, err := buildinfo.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && info.Main.Path == module:
			return nil
		}
		return []Finding{{Severity: severe, About: file,
			Means: "our units run this program, which is not of this project; the original's registry-gc does not " +
				"know our leases, and may release an address of a new pod",
			Do: "delete it, and if no other directory has our program, install the package again"}}
	}
	return nil
}

// repairs matches the command that restores, by either name of the program.
var repairs = regexp.MustCompile(`\bcni-(ipvlan-vpc-k8s-)?tool repair\b`)

// checkRepairs checks that cni-gc.service runs repair, too. The README of the original has a unit of this name without
// it. In /etc, that unit hides the one of a package.
func (p *Node) checkRepairs() []Finding {
	const unit = "cni-gc.service"
	file, installed := p.lookUp("systemd/system", unit)
	if !installed {
		return nil
	}
	for _, f := range append(p.dropIns("systemd/system", unit+".d"), file) {
		if text, err := os.ReadFile(f); err != nil || repairs.Match(text) {
			return nil
		}
	}
	return []Finding{{Severity: warning, About: file,
		Means: "it does not run repair. If another program deletes our objects on the node, they are missing until " +
			"the next ADD, or until the pods end",
		Do: "delete it, if it hides the unit of the package, and run systemctl daemon-reload; or add ExecStartPre=-" +
			cli.Name + " repair"}}
}
