// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// TestEgressKernelUnloaded: a process may not load modules, and the kernel has not loaded a module for egress. doctor
// must not report this as an error. The test needs a kernel without FOU, or a kernel that has not loaded FOU.
func TestEgressKernelUnloaded(t *testing.T) {
	nltest.Need(t, "root", "netns")
	networks := []conf.NetworkEgress{{Config: egress.Config{Egresses: map[string]egress.Egress{
		"partner": {Gateways: []string{"172.20.0.77", "fd00:20::77"}, Selectable: []string{"shop"},
			Destinations: []string{"203.0.113.0/24", "3fff:1::/44"},
			Clients:      []string{"2600:1f18::/56"}}}}}}
	for i := range networks {
		if err := networks[i].Validate(); err != nil {
			t.Fatal(err)
		}
	}
	nltest.Without(t, unix.CAP_SYS_MODULE, func() {
		for _, f := range egressKernel(networks) {
			if f.Severity != note {
				t.Errorf("%s: %s: %s", f.Severity, f.About, f.Means)
			}
		}
	})
}
