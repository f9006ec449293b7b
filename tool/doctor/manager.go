// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
)

// specOfENIs matches a list of devices that can name ENIs, not only the links of a CNI plugin, such as
// interface-name:cali* ("Device List Format" in NetworkManager.conf(5)).
var specOfENIs = regexp.MustCompile(`(^|[;,\s])(\*|type:ethernet|driver:[=~]*(ena|ixgbevf|vif)|` +
	`mac:|([[:xdigit:]]{2}:){5}|(interface-name:)?[=~]*(\*|e(th|n[^i]|\*)))`)

// checkManager checks that NetworkManager does not configure the ENIs of pods.
func (p *Node) checkManager(ctx context.Context) ([]Finding, error) {
	_, err := os.Stat(p.pathOf("/run/NetworkManager"))
	if err != nil && !p.isActive(ctx, "NetworkManager.service") {
		return nil, nil
	}
	devices, _, err := p.unmanagedDevices(p.root != "" && p.isEnabled("cni-links.service"))
	if err != nil || specOfENIs.MatchString(devices) {
		return nil, err
	}
	if _, replacer, _ := p.unmanagedDevices(true); replacer != "" {
		return []Finding{{Severity: severe, About: replacer,
			Means: "this file replaces the setting unmanaged-devices of other files, and does not name the ENIs of " +
				"pods. So NetworkManager adds addresses and routes to these ENIs",
			Do: "in this file, write unmanaged-devices+= instead of unmanaged-devices=. Then, if every ENI except " +
				"the boot ENI is for pods, run: systemctl enable cni-links.service && systemctl restart " +
				"cni-links.service. Otherwise set unmanaged-devices for the ENIs of pods"}}, nil
	}
	return []Finding{{Severity: severe, About: "NetworkManager",
		Means: "NetworkManager has no setting unmanaged-devices for the ENIs of pods, so it adds addresses and " +
			"routes to these ENIs",
		Do: "if every ENI except the boot ENI is for pods, run: systemctl enable --now cni-links.service. " +
			"Otherwise set unmanaged-devices for the ENIs of pods"}}, nil
}

// unmanagedDevices returns NetworkManager's setting unmanaged-devices, and the file that replaced a setting for ENIs,
// if any. If links is set, it assumes the setting that cni-links.service writes into /run.
func (p *Node) unmanagedDevices(links bool) (devices, replacer string, err error) {
	const main = "/etc/NetworkManager/NetworkManager.conf"
	files := append([]string{p.pathOf(main)}, p.dropIns("NetworkManager", "conf.d")...)
	late := func(f string) int { // NetworkManager.conf(5): first /usr/lib, then /run, then the main file, and then /etc
		return -slices.IndexFunc(configLayers, func(l string) bool { return strings.HasPrefix(f, p.pathOf(l)+"/") })
	}
	slices.SortStableFunc(files, func(a, b string) int { return late(a) - late(b) })
	for _, f := range files {
		if links && f == p.pathOf(main) {
			devices += ";driver:ena"
		}
		b, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", "", err
		}
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(line, "=")
			switch strings.TrimSpace(key) {
			case "unmanaged-devices+":
				devices += ";" + value
			case "unmanaged-devices":
				if specOfENIs.MatchString(devices) {
					replacer = f
				}
				devices = value
			}
		}
	}
	return devices, replacer, nil
}
