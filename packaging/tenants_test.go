// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// tenants is the directory into which make unpacks Debian's packages and builds Tailscale and WireGuard. make does not
// install them, because they would configure this machine.
const tenants = "../.cache/tenants"

// TestTenants starts, reloads, restarts and stops other programs on a simulated instance: Debian's firewalls,
// NetworkManager, Docker, chrony, unattended-upgrades, WireGuard and Tailscale. Meanwhile, a pod connects to the
// internet, and the node connects to the pod.
func TestTenants(t *testing.T) {
	nltest.Need(t, "root", "netns", "fib", "iptables")
	need(t, tenants+"/usr/sbin/firewalld", tenants+"/usr/sbin/ufw", tenants+"/usr/sbin/NetworkManager",
		tenants+"/usr/sbin/dockerd", tenants+"/usr/sbin/chronyd", tenants+"/usr/bin/unattended-upgrade",
		tenants+"/usr/bin/wg-quick", tenants+"/usr/sbin/wireguard", tenants+"/usr/sbin/tailscaled",
		"/usr/bin/python3")
	boot(t, "tenants", tenants)
}
