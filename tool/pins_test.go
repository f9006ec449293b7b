// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestRemoveOldPins checks that removeOldPins removes a pinned program only if it is ours, and if no process has opened
// it for a long time.
func TestRemoveOldPins(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	for name, opened := range map[string]time.Duration{
		"cni_ipvlan_vpc_k8s:old": 8 * 24 * time.Hour, "cni_ipvlan_vpc_k8s:new": time.Hour, "others": 8 * 24 * time.Hour,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, now.Add(-opened), now); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeOldPins(dir, now.Add(-maxPinAge)); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	want := []string{filepath.Join(dir, "cni_ipvlan_vpc_k8s:new"), filepath.Join(dir, "others")}
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("left: %v, %v, want %v", left, err, want)
	}
	if err := removeOldPins(filepath.Join(dir, "none"), now); err != nil {
		t.Errorf("without the directory: %v", err)
	}
}
