// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import "testing"

// TestLaunchToken: a second launch with the same client token launches no further instance.
func TestLaunchToken(t *testing.T) {
	sim, _ := start(t, world)
	call := launch1 + " ClientToken=t"
	first, before := must(t, sim, call).one(t, "reservationId"), len(sim.Instances())
	if again := must(t, sim, call).one(t, "reservationId"); again != first || len(sim.Instances()) != before {
		t.Errorf("again: %s with %d instances, want %s with %d", again, len(sim.Instances()), first, before)
	}
	if another := must(t, sim, call+"2").one(t, "reservationId"); another == first || len(sim.Instances()) != before+1 {
		t.Errorf("another token: %s with %d instances", another, len(sim.Instances()))
	}
}
