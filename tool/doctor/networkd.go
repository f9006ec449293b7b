// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"os"
	"slices"
	"strings"
)

// networkdConf are the settings by which systemd-networkd does not remove routes and rules of
// pods.
const networkdConf = "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n"

// checkNetworkd reads how systemd-networkd treats routes and rules of others (networkd.conf(5)). By default,
// systemd-networkd removes these when it starts, or when it configures a link again.
func (p *Node) checkNetworkd(ctx context.Context) ([]Finding, error) {
	_, err := os.Stat(p.path("/run/systemd/netif/links"))
	if err != nil && !p.runs(ctx, "systemd-networkd.service") {
		return nil, nil
	}
	files := p.dropIns("systemd", "networkd.conf.d")
	if main, ok := p.lookUp("systemd", "networkd.conf"); ok {
		files = append([]string{main}, files...)
	}
	settings := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			if key, value, ok := strings.Cut(line, "="); ok {
				settings[strings.TrimSpace(key)] = strings.ToLower(strings.TrimSpace(value))
			}
		}
	}
	var found []Finding
	for key, what := range map[string]string{"ManageForeignRoutes": "routes",
		"ManageForeignRoutingPolicyRules": "rules"} {
		if !slices.Contains([]string{"no", "n", "false", "f", "off", "0"}, settings[key]) {
			found = append(found, Finding{Severity: severe, About: key, Means: "systemd-networkd removes the " + what +
				" of pods when it starts or configures a link again",
				Do: "set " + key + "=no in /etc/systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf, and restart " +
					"systemd-networkd at a quiet time",
				fix: p.write("/etc/systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf", networkdConf,
					", which systemd-networkd reads at its next start")})
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.About, b.About) })
	return found, nil
}
