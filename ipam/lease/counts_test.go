// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestCounts calls Ended with each outcome of a command, and checks what the registry has counted.
func TestCounts(t *testing.T) {
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", t.TempDir())
	ended := Commands().Ended
	ended("ADD", 30*time.Millisecond, false, nil)
	ended("ADD", 2*time.Second, true, nil)
	for _, code := range []uint{plugin.CodeTryAgain, plugin.CodeRefused, plugin.CodeIO, types.ErrInternal} {
		ended("ADD", time.Second, true, types.NewError(code, "", ""))
	}
	ended("DEL", time.Millisecond, false, nil)
	ended("STATUS", time.Millisecond, false, nil)
	got := map[string]uint64{}
	all, err := registry.Counts(registry.Dir())
	for _, c := range all {
		if c.Total > 0 {
			got[c.Command+" "+c.Outcome] = c.Total
		}
	}
	want := map[string]uint64{"ADD ok": 1, "ADD waited": 1, "ADD again": 1, "ADD refused": 1, "ADD failed": 2,
		"DEL ok": 1}
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s: %d, want %d", name, got[name], n)
		}
	}
	if len(got) != len(want) || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}
