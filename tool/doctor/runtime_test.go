// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import "testing"

func TestForgetful(t *testing.T) {
	for answer, want := range map[string]string{
		"containerd github.com/containerd/containerd/v2 v2.1.5 fcd43222d6b0": "v2.1.5",
		"containerd github.com/containerd/containerd/v2 v2.1.7 0a1b":         "",
		"containerd containerd.io 1.7.27 05044ec0a9a7":                       "1.7.27",
		"containerd github.com/containerd/containerd 1.7.31~ds1 1.7.31~ds1":  "",
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1":  "1.6.20",
		"containerd github.com/k3s-io/containerd v2.2.1-k3s1":                "v2.2.1",
		"containerd github.com/containerd/containerd/v2 v2.3.0 1f2e":         "",
		"containerd github.com/containerd/containerd/v2 2.4.2+unknown":       "",
		"containerd github.com/containerd/containerd/v3 v3.0.0":              "",
		"containerd github.com/containerd/containerd/v2 main-12-g0b84":       "",
	} {
		if got := forgetful(answer); got != want {
			t.Errorf("%s: got %q, want %q", answer, got, want)
		}
	}
}
