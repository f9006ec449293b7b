// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestStatusWhileLocked: STATUS does not wait while other processes have the locks of the node.
func TestStatusWhileLocked(t *testing.T) {
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	n.acquire(1, "old")
	for _, lock := range []string{"registry", "grow", "queue", "collect"} {
		unlock, err := n.Registry().Lock(t.Context(), lock)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
	}
	n.run(n.cni("STATUS", "", nil))
}
