// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// TestUsedUnreadable: what cannot be listed is not empty.
func TestUsedUnreadable(t *testing.T) {
	was := shelves
	t.Cleanup(func() { shelves = was })
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		folder  string
		partial bool
	}{
		{t.TempDir(), false},
		{filepath.Join(t.TempDir(), "absent"), false},
		{file, true}, // it is no folder: any error but absence
	} {
		shelves = []shelf{{test.folder, ""}}
		if got := UsedAddrs().Partial; got != test.partial {
			t.Errorf("%s: partial %v, want %v", test.folder, got, test.partial)
		}
	}
}

// TestUsedProcess: a pod is seen by its process where the runtime gives its namespace no name.
func TestUsedProcess(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.77")
	runPod(t, a)
	if used := UsedAddrs(); used.By[a] == "" {
		t.Errorf("%v is not used: %v", a, used)
	}
}
