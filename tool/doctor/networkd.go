// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// networkdConf are the settings with which systemd-networkd does not remove routes and rules of pods.
const networkdConf = "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n"

// checkNetworkd reads how systemd-networkd treats routes and rules that other programs have made (networkd.conf(5)). By
// default, systemd-networkd removes these routes and rules when it starts, or when it configures a link again.
func (p *Node) checkNetworkd(ctx context.Context) ([]Finding, error) {
	_, err := os.Stat(p.pathOf("/run/systemd/netif/links"))
	if err != nil && !p.isActive(ctx, "systemd-networkd.service") {
		return nil, nil
	}
	files := p.dropIns("systemd", "networkd.conf.d")
	if main, ok := p.lookUp("systemd", "networkd.conf"); ok {
		files = append([]string{main}, files...)
	}
	settings := map[string]string{}
	var deciding []string // files with one of the settings
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if strings.Contains(string(b), "ManageForeign") {
			deciding = append(deciding, f)
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
					"systemd-networkd",
				fix: p.networkdFix()})
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.About, b.About) })
	if len(found) > 0 || p.root != "" {
		return found, nil
	}
	return unreadSettings(deciding)
}

// networkdRestart is the command that makes a running systemd-networkd read its settings. When systemd-networkd starts
// with our settings, routes and rules of pods stay.
const networkdRestart = "systemctl try-restart systemd-networkd.service"

// unreadSettings returns a finding if the running systemd-networkd has perhaps not read one of the files.
func unreadSettings(files []string) ([]Finding, error) {
	file, err := cli.UnreadByNetworkd(files)
	if err != nil || file == "" {
		return nil, err
	}
	return []Finding{{Severity: severe, About: file,
		Means: "this file was written after systemd-networkd had started, so systemd-networkd may not have read it. " +
			"Then systemd-networkd removes the routes and rules of pods when it configures a link",
		Do: "restart systemd-networkd: " + networkdRestart + ". The routes and rules of pods stay",
		fix: func(ctx context.Context) (string, error) {
			return networkdRestart, execRestart(ctx)
		}}}, nil
}

// networkdFix returns a fix that writes our settings for systemd-networkd, and makes a running systemd-networkd read
// these settings.
func (p *Node) networkdFix() func(context.Context) (string, error) {
	write := p.fileFix("/etc/systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf", networkdConf, "")
	return func(ctx context.Context) (string, error) {
		did, err := write(ctx)
		if err != nil {
			return "", err
		}
		if !p.hasSystemd() {
			return did + ", which systemd-networkd reads at its next start", nil
		}
		return did + ", and called " + networkdRestart, execRestart(ctx)
	}
}

// execRestart executes networkdRestart.
func execRestart(ctx context.Context) error {
	args := strings.Fields(networkdRestart)
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", networkdRestart, err, out)
	}
	return nil
}
