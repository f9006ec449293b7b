// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestCollectedLately: a mark counts for half an hour. A mark from a clock that was a day ahead does not count for the
// whole day. After a small step of the clock, a mark may be a moment in the future, and counts.
func TestCollectedLately(t *testing.T) {
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", t.TempDir())
	for age, want := range map[time.Duration]bool{
		time.Minute: true, -time.Second: true, time.Hour: false, -24 * time.Hour: false,
	} {
		if err := MarkCollected(); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(registry.Dir(), collectedMark), when, when); err != nil {
			t.Fatal(err)
		}
		if got := CollectedLately(); got != want {
			t.Errorf("a mark of the age %v counts: %v", age, got)
		}
	}
}
