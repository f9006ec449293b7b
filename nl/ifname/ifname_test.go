// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ifname_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
)

func TestFault(t *testing.T) {
	for name, want := range map[string]string{
		"eth0": "", "bond0.100": "", "fifteen-bytes-x": "", "...": "",
		"": "is empty", "sixteen-bytes-up": "is too long", ".": "is . or ..", "..": "is . or ..",
		"a/b": "contains / or : or whitespace characters", "eth0:1": "contains / or : or whitespace characters", "eth 0": "contains / or : or whitespace characters",
	} {
		if got := ifname.Fault(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
