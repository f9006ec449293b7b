// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
)

// TestMissingNew: for some seconds, EC2 does not find an ENI that it has just created. A pod has an address of the ENI,
// and keeps it.
func TestMissingNew(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, wires *wires) {
		addr, eni := w.mustAcquire(0), w.EC2.ENIs()[1].ID
		wires.hidden.Store(eni)
		wires.by = "network-interface-id"
		w.EC2.Fail("AssignPrivateIpAddresses", "InvalidNetworkInterfaceID.NotFound", 1)
		w.mustAcquire(1)
		if again := w.mustAcquire(0); again != addr {
			t.Errorf("the pod had %s, and has %s", addr, again)
		}

		// Later, the ENI does not count as new any more, so the node believes EC2's answer.
		time.Sleep(2 * known.Settled)
		must(t, w.pool().Missing(w.Context(), eni))
		if _, known := w.State().ENIs[eni]; known {
			t.Errorf("the registry still has %s", eni)
		}
	})
}
