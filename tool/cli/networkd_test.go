// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"testing"
	"time"
)

// TestIsBetween: a file has a change time in the future. doctor must not report that systemd-networkd has not read this
// file. Otherwise doctor would restart systemd-networkd again and again.
func TestIsBetween(t *testing.T) {
	started := time.Now()
	now := started.Add(time.Hour)
	for written, want := range map[time.Time]bool{
		started.Add(-time.Minute): false, started.Add(time.Minute): true, now.Add(time.Minute): false,
	} {
		if got := isBetween(written, started, now); got != want {
			t.Errorf("written %v after the start: %v", written.Sub(started), got)
		}
	}
}
