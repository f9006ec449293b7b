// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// tenants is where make unpacks Debian's firewalls, NetworkManager and Docker. make does not install them, because they
// would configure this machine.
const tenants = "../.cache/tenants"

// TestTenants starts, reloads, restarts and stops Debian's firewalls, NetworkManager and Docker on a simulated
// instance, while a pod calls the internet and the node calls the pod.
func TestTenants(t *testing.T) {
	nltest.Need(t, "root", "netns", "fib", "iptables")
	need(t, tenants+"/usr/sbin/firewalld", tenants+"/usr/sbin/ufw", tenants+"/usr/sbin/NetworkManager",
		tenants+"/usr/sbin/dockerd",
		"/usr/bin/python3")
	boot(t, "tenants", tenants)
}
