// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"net/netip"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestLockTimeAlone: no garbage collection of this process falls into the measurement, although one is always due.
func TestLockTimeAlone(t *testing.T) {
	n := &node{dir: t.TempDir()}
	r, err := registry.Open(filepath.Join(n.dir, "run"))
	if err == nil {
		err = r.Change(t.Context(), func(s *registry.State) {
			for i := range 10_000 {
				s.Free.Set(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), time.Time{})
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, change, err := n.lockTime(t.Context()); err != nil || change <= 0 {
		t.Fatal(change, err)
	}
	runtime.ReadMemStats(&after)
	const own = 1 // after the measurement
	if n := (after.NumGC - after.NumForcedGC) - (before.NumGC - before.NumForcedGC); n > own {
		t.Errorf("%d collections", n)
	}
}
