// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestUsedUnreadable: a directory that cannot be listed does not count as empty.
func TestUsedUnreadable(t *testing.T) {
	host, _ := nltest.NS(t, "node")
	was := Shelves
	t.Cleanup(func() { Shelves = was })
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		dir     string
		partial bool
	}{
		{t.TempDir(), false},
		{filepath.Join(t.TempDir(), "absent"), false},
		{file, true}, // a file, so the error is not that of an absent directory
	} {
		Shelves = []Shelf{{test.dir, ""}}
		if got := UsedAddrs(host).Partial; got != test.partial {
			t.Errorf("%s: partial %v, want %v", test.dir, got, test.partial)
		}
	}
}
