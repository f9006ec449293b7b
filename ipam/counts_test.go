// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestCountedOnce: if an ADD executes GrowProgram, the registry counts the two processes as one command.
func TestCountedOnce(t *testing.T) {
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	n.add("pod")
	counts, err := registry.Counts(n.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range counts {
		if want := c.Command == "ADD" && c.Outcome == "waited"; (c.Total == 1) != want || c.Total > 1 {
			t.Errorf("%s %s: %d", c.Command, c.Outcome, c.Total)
		}
	}
}
