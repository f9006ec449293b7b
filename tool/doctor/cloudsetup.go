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

// checkCloudSetup checks that nm-cloud-setup does not take the addresses of pods (nm-cloud-setup(8)). nm-cloud-setup
// runs at each change of a lease, and every five minutes.
func (p *Node) checkCloudSetup(ctx context.Context) ([]Finding, error) {
	unit, installed := p.lookUp("systemd/system", cloudSetupUnit)
	wanted := p.enabled(cloudSetupUnit) || p.enabled("nm-cloud-setup.timer") || p.runs(ctx, "nm-cloud-setup.timer")
	if !installed || !wanted {
		return nil, nil
	}
	value := ""
	for _, f := range append([]string{unit}, p.dropIns("systemd/system", cloudSetupUnit+".d")...) {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		value = environment(string(b), "NM_CLOUD_SETUP_EC2", value)
	}
	if !slices.Contains([]string{"yes", "y", "true", "t", "on", "1"}, strings.ToLower(value)) {
		return nil, nil // off, as by default
	}
	const dropIn = "/etc/systemd/system/" + cloudSetupUnit + ".d/cni-ipvlan-vpc-k8s.conf"
	return []Finding{{Severity: severe, About: cloudSetupUnit,
		Means: "it gives the node every secondary address of its ENIs, and rules with preferences from 30200 on; the " +
			"node answers instead of its pods, and its own packets to pods take the wrong way",
		Do: "install the drop-in " + dropIn +
			", run systemctl daemon-reload, and boot the node, which has the rules until then",
		fix: p.write(dropIn, cloudSetupConf,
			", for when systemd reads its units next. The rules are there until the node boots")}}, nil
}

// environment returns the value of a variable after a file of a unit. The last assignment counts, and an empty one
// takes back all before it (systemd.exec(5)).
func environment(text, name, value string) string {
	for line := range strings.Lines(text) {
		set, ok := strings.CutPrefix(strings.TrimSpace(line), "Environment=")
		if !ok {
			continue
		}
		if set == "" {
			value = ""
		}
		for _, word := range strings.Fields(strings.NewReplacer(`"`, "", "'", "").Replace(set)) {
			if v, ours := strings.CutPrefix(word, name+"="); ours {
				value = v
			}
		}
	}
	return value
}
