// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ifname_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
)

func TestFault(t *testing.T) {
	for name, want := range map[string]string{
		"eth0": "", "bond0.100": "", "fifteen-bytes-x": "", "...": "", "größe": "", "a\x1b[2J": "",
		"": "is empty", "sixteen-bytes-up": "is too long", ".": "is . or ..", "..": "is . or ..",
		"a/b": "contains / or : or whitespace characters", "eth0:1": "contains / or : or whitespace characters",
		"eth 0":    "contains / or : or whitespace characters",
		"eth0\x00": "contains a zero byte",
	} {
		if got := ifname.Fault(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestRefused(t *testing.T) {
	const (
		unprintable = "contains a character that is not printable ASCII"
		kernels     = "is one that the kernel uses itself"
		egress      = "begins with egress, as the links of an egress do"
	)
	for name, want := range map[string]string{
		"eth0": "", "bond0.100": "", "net1": "", "ovpn-eu_1": "", "lo0": "", "tunl1": "", "regress4": "",
		"": "is empty", "sixteen-bytes-up": "is too long", "a/b": "contains / or : or whitespace characters",
		"eth0\x00": "contains a zero byte",
		"a\x1b[2J": unprintable, "a\u202eb": unprintable, "a\u200bb": unprintable, "größe": unprintable,
		"a\x7f": unprintable, "a\xff": unprintable, "\u0435th0": unprintable,
		"data%d": "contains %, which the kernel replaces by a number",
		"lo":     kernels, "all": kernels, "default": kernels, "tunl0": kernels, "ip6tnl0": kernels, "sit0": kernels,
		"egress4": egress, "egress6": egress, "egress": egress, "egress-x": egress,
	} {
		if got := ifname.Refused(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
