// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestAskedByHand: EC2 refuses to attach an ENI, and later to detach it. The next ADD does not repeat the refused call.
// A command of an operator makes the call again at once.
func TestAskedByHand(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		spec := more.ENISpec{Tags: w.policy.SubnetTags, SecurityGroups: w.policy.SecurityGroups, MinIndex: 1}
		w.EC2.Fail("AttachNetworkInterface", "OperationNotPermitted", 1)
		if _, err := w.acquire(1); err == nil {
			t.Fatal("an ADD has an address, and EC2 has refused its ENI")
		}
		if _, err := w.acquire(1); err == nil || w.EC2.Asked("AttachNetworkInterface") != 1 {
			t.Errorf("the next ADD: %v, after %d calls", err, w.EC2.Asked("AttachNetworkInterface"))
		}
		id, _, err := w.pool().Provision(w.Context(), spec)
		if err != nil {
			t.Fatalf("a command of an operator: %v", err)
		}
		w.EC2.Fail("DetachNetworkInterface", "OperationNotPermitted", 1)
		for _, fails := range []bool{true, false} {
			if err := w.pool().Remove(w.Context(), id); (err != nil) != fails {
				t.Errorf("remove-interface: %v", err)
			}
		}
		w.Edit(func(s *registry.State) {
			if len(s.Refusals) > 0 {
				t.Errorf("left %v", s.Refusals)
			}
		})
	})
}
