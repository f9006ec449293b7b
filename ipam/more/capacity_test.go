// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFewest compares fewestPods with a search of all orders in which pods of several pools can start on an instance.
func TestFewest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		all := make([]share, 1+rng.IntN(3))
		enis := rng.IntN(4)
		for i := range all {
			all[i] = share{attached: rng.IntN(3), enis: enis, podsPerENI: 1 + rng.IntN(4), warm: max(rng.IntN(5)-2, 0)}
		}
		least := math.MaxInt
		for i := range all {
			least = min(least, fewestPods(all[i], slices.Delete(slices.Clone(all), i, i+1)))
		}
		if want := played(all, enis); least != want {
			t.Fatalf("%+v: %d pods, want %d", all, least, want)
		}
	}
}

// played returns the smallest number of pods after which the next pod may find no address. It tries all orders. A pool
// takes an ENI for each pod that finds no address. A pool may also take an ENI while it has fewer free addresses than
// its warm addresses.
func played(pools []share, enis int) int {
	type state struct{ pods, has [3]int }
	ready := func(s state) []state { // s, and each state after pools have taken ENIs for warm addresses
		var all []state
		var take func(s state)
		take = func(s state) {
			if slices.Contains(all, s) {
				return
			}
			all = append(all, s)
			for i, p := range pools {
				if s.has[0]+s.has[1]+s.has[2] < enis && p.attached+s.has[i]*p.podsPerENI-s.pods[i] < p.warm {
					next := s
					next.has[i]++
					take(next)
				}
			}
		}
		take(s)
		return all
	}
	at := ready(state{})
	for n := 0; ; n++ {
		seen, then := map[string]bool{}, []state{}
		for _, s := range at {
			for i, p := range pools {
				next := s
				next.pods[i]++
				if next.pods[i] > p.attached+s.has[i]*p.podsPerENI {
					if next.has[i]++; s.has[0]+s.has[1]+s.has[2] == enis {
						return n
					}
				}
				for _, r := range ready(next) {
					if key := fmt.Sprint(r); !seen[key] {
						seen[key] = true
						then = append(then, r)
					}
				}
			}
		}
		at = then
	}
}
