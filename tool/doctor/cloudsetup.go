// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"os"
	"slices"
	"strings"
)

// cloudSetupUnit is the unit of nm-cloud-setup. RHEL 9 enables it on EC2.
const cloudSetupUnit = "nm-cloud-setup.service"

// cloudSetupConf turns nm-cloud-setup off on EC2.
const cloudSetupConf = "[Service]\nEnvironment=NM_CLOUD_SETUP_EC2=no\n"

// checkCloudSetup checks that nm-cloud-setup does not give the addresses of pods to the node (nm-cloud-setup(8)).
// nm-cloud-setup runs at each change of a DHCP lease, and every five minutes.
func (p *Node) checkCloudSetup(ctx context.Context) ([]Finding, error) {
	unit, installed := p.lookUp("systemd/system", cloudSetupUnit)
	const timer = "nm-cloud-setup.timer"
	wanted := p.isEnabled(cloudSetupUnit) || p.isEnabled(timer) || p.isActive(ctx, timer)
	if !installed || !wanted {
		return nil, nil
	}
	value := ""
	for _, f := range append([]string{unit}, p.dropIns("systemd/system", cloudSetupUnit+".d")...) {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		value = assignedValue(string(b), "NM_CLOUD_SETUP_EC2", value)
	}
	if !slices.Contains([]string{"yes", "y", "true", "t", "on", "1"}, strings.ToLower(value)) {
		return nil, nil // nm-cloud-setup is off, which is the default
	}
	const dropIn = "/etc/systemd/system/" + cloudSetupUnit + ".d/cni-ipvlan-vpc-k8s.conf"
	return []Finding{{Severity: severe, About: cloudSetupUnit,
		Means: "nm-cloud-setup gives the node every secondary address of its ENIs, and rules with preferences from " +
			"30200 on. The node then answers instead of its pods, and the node's packets to pods take the wrong way",
		Do: "install the drop-in " + dropIn +
			", run systemctl daemon-reload, and reboot the node. The rules stay until the reboot",
		fix: p.fileFix(dropIn, cloudSetupConf,
			", which systemd reads at its next daemon-reload. The rules stay until the node reboots"),
		partly: true}}, nil
}

// assignedValue returns the value of an environment variable after systemd has read the text of one file of a unit. The
// argument "earlier" is the value from previous files. The last assignment counts, and an empty assignment removes all
// previous assignments (systemd.exec(5)).
func assignedValue(text, name, earlier string) string {
	for line := range strings.Lines(text) {
		set, ok := strings.CutPrefix(strings.TrimSpace(line), "Environment=")
		if !ok {
			continue
		}
		if set == "" {
			earlier = ""
		}
		for _, word := range strings.Fields(strings.NewReplacer(`"`, "", "'", "").Replace(set)) {
			if v, ours := strings.CutPrefix(word, name+"="); ours {
				earlier = v
			}
		}
	}
	return earlier
}
