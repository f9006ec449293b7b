// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"net/netip"
	"testing"
)

// An address is read as netip reads it, or refused.
func FuzzAddr(f *testing.F) {
	for _, s := range []string{
		"10.0.0.1", "255.255.255.255", "0.0.0.0", "2001:db8::1", "fe80::1%eth0", "::ffff:10.0.0.1",
		"", ".", "...", "1.2.3", "1.2.3.4.5", "1.2.3.", ".1.2.3", "1..2.3", "256.0.0.1", "1.2.3.256", "01.2.3.4", "1.2.3.00", "1.2.3.4 ",
		"1.2.3.1000", "4294967297.1.1.1", "1.2.3.4294967297", "1.2.3.-1", "1/2",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseAddr(s)
		want, wrong := netip.ParseAddr(s)
		if got != want || (err == nil) != (wrong == nil) {
			t.Errorf("%q: got %v %v, want %v %v", s, got, err, want, wrong)
		}
	})
}
