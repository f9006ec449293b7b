// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"math"
	"testing"
	"time"
)

// TestJitter checks that the jitter is random, and at most 15 % of the duration.
func TestJitter(t *testing.T) {
	const d = 15 * time.Minute
	seen := map[time.Duration]bool{}
	for range 1000 {
		j := jitter(d)
		if j < 0 || j > d*15/100 {
			t.Fatalf("jitter(%v) = %v, want 0 to %v", d, j, d*15/100)
		}
		seen[j] = true
	}
	if len(seen) < 900 {
		t.Errorf("jitter(%v) has %d values in 1000 calls", d, len(seen))
	}
	if j := jitter(1); j != 0 {
		t.Errorf("jitter(1ns) = %v", j)
	}
	for _, d := range []time.Duration{200_000 * time.Hour, math.MaxInt64} {
		for range 100 {
			if j := jitter(d); j < 0 || d+j < d {
				t.Fatalf("jitter(%v) = %v: the sum is %v", d, j, d+j)
			}
		}
	}
}
