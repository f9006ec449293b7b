// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"os"
	"os/exec"
	"testing"
)

// need skips the test if one of the programs is missing. make test installs all of them.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			continue
		}
		if ci := os.Getenv("CI"); ci != "" && ci != "false" {
			t.Fatalf("needs %s, and in CI everything runs", p)
		}
		t.Skipf("needs %s", p)
	}
}
