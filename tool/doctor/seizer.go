// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import "os"

// A seizer is a program of the system that configures each ENI when the ENI's link appears.
type seizer struct {
	about string // the file or unit of the program
	means string
}

// hotplugRules is a file of udev. Its rules keep seizers away from the ENIs of pods. cni-links.service writes this
// file.
const hotplugRules = "/run/udev/rules.d/99-zz-cni-ipvlan-vpc-k8s.rules"

// seizerFindings returns a finding if nothing prevents a seizer from configuring the ENIs of pods.
func (p *Node) seizerFindings(s seizer) []Finding {
	enable := "if every ENI except the boot ENI is for pods, run: systemctl enable --now cni-links.service"
	if !p.linksKnown() {
		return []Finding{{Severity: severe, About: s.about, Means: s.means, Do: enable}}
	}
	if _, err := os.Stat(hotplugRules); p.root == "" && err != nil {
		return []Finding{{Severity: severe, About: s.about, Means: s.means +
			". The cni-links.service that has run is of an earlier release, which writes no udev rules to prevent this",
			Do: "systemctl restart cni-links.service"}}
	}
	return nil
}
