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

// TestCollectedLately: registry-gc leaves a mark, which counts for half an hour. If the clock was a day ahead at that
// time, the mark does not count. After a small step of the clock, the mark may be a moment in the future, and still
// counts.
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
