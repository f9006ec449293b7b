// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"os"
	"slices"
)

// linksRun is the directory that cni-links.service creates when it runs.
const linksRun = "/run/cni-ipvlan-vpc-k8s-links"

// netUtilsConf is a drop-in with which systemd does not start a unit of amazon-ec2-net-utils for the ENIs of pods.
const netUtilsConf = "[Unit]\nConditionPathExists=|!" + linksRun + "\nConditionPathExists=|" + linksRun + "/%i\n"

// checkNetUtils checks that amazon-ec2-net-utils does not configure the ENIs of pods.
func (p *Node) checkNetUtils(context.Context) ([]Finding, error) {
	var found []Finding
	for _, unit := range []string{"policy-routes@.service", "refresh-policy-routes@.service"} {
		if _, installed := p.lookUp("systemd/system", unit); !installed {
			continue
		}
		dropIn := unit + ".d/cni-ipvlan-vpc-k8s.conf"
		if _, ok := p.lookUp("systemd/system", dropIn); !ok {
			found = append(found, Finding{Severity: severe, About: unit,
				Means: "each minute, amazon-ec2-net-utils adds every secondary address of each ENI to the node. The " +
					"node then answers instead of its pods",
				Do: "install the drop-in " + dropIn + ", and run systemctl daemon-reload",
				fix: p.fileFix("/etc/systemd/system/"+dropIn, netUtilsConf, ", which systemd reads at its next "+
					"daemon-reload"), partly: true})
		}
	}
	_, installed := p.lookUp("systemd/system", "policy-routes@.service")
	if installed && !p.linksKnown() {
		found = append(found, Finding{Severity: severe, About: "cni-links.service",
			Means: "this unit has not run, or is not enabled, so amazon-ec2-net-utils does not know which ENIs are " +
				"for pods",
			Do: "if every ENI except the boot ENI is for pods, run: systemctl enable --now cni-links.service"})
	}
	entries, _ := os.ReadDir(p.pathOf(linksRun)) // ignore the error: cni-links.service may not have run yet
	bootServes := slices.ContainsFunc(p.poolPolicies(), func(pool pool) bool { return pool.MinIndex == 0 })
	if installed && bootServes && len(entries) > 0 {
		found = append(found, Finding{Severity: severe, About: "cni-links.service",
			Means: "this unit ran with another conflist. The boot ENI now serves pods (interfaceIndex 0), but each " +
				"minute amazon-ec2-net-utils adds every secondary address of the boot ENI to the node",
			Do: "run: systemctl restart cni-links.service"})
	}
	return found, nil
}

// linksKnown reports whether cni-links.service has recorded the links of the system, or will
// do so at boot.
func (p *Node) linksKnown() bool {
	_, err := os.Stat(p.pathOf(linksRun))
	return err == nil || p.root != "" && p.isEnabled("cni-links.service")
}
