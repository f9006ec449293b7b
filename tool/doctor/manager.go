// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
)

// checkManager checks that NetworkManager does not configure the ENIs of pods.
func (p *Node) checkManager(ctx context.Context) ([]Finding, error) {
	_, err := os.Stat(p.pathOf("/run/NetworkManager"))
	if err != nil && !p.isActive(ctx, "NetworkManager.service") || p.root != "" && p.isEnabled("cni-links.service") {
		return nil, nil
	}
	main := p.pathOf("/etc/NetworkManager/NetworkManager.conf")
	for _, f := range append(p.dropIns("NetworkManager", "conf.d"), main) {
		b, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if strings.Contains(string(b), "\nunmanaged-devices") {
			return nil, nil
		}
	}
	return []Finding{{Severity: severe, About: "NetworkManager",
		Means: "NetworkManager has no setting unmanaged-devices for the ENIs of pods, so it adds addresses and " +
			"routes to these ENIs",
		Do: "if every ENI except the boot ENI is for pods, run: systemctl enable --now cni-links.service. " +
			"Otherwise set unmanaged-devices for the ENIs of pods"}}, nil
}
