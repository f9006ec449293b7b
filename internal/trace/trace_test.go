// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import "testing"

func TestID(t *testing.T) {
	const want = "4bf92f3577b34da6a3ce929d0e0e4736"
	for parent, want := range map[string]string{
		"":                                                        "",
		"00-" + want + "-00f067aa0ba902b7-01":                     want,
		"00-" + want + "-00f067aa0ba902b7-00":                     want,
		"cc-" + want + "-00f067aa0ba902b7-01-x":                   want,
		"cc-" + want + "-00f067aa0ba902b7-01":                     want,
		"00-" + want + "-00f067aa0ba902b7-01-x":                   "",
		"ff-" + want + "-00f067aa0ba902b7-01":                     "",
		"00-" + want + "-00f067aa0ba902b7":                        "",
		"00-" + want + "0-0f067aa0ba902b7-01":                     "",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01": "",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": "",
		"00-\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n-00f067aa0ba902b7-01": "",
	} {
		if got := traceID(parent); got != want {
			t.Errorf("%q: got %q, want %q", parent, got, want)
		}
	}
}
