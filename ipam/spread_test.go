// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// TestNearlyFullSubnet: an ENI takes a whole slot, so it goes to a subnet with room for all its addresses, and not to
// one with a single address.
func TestNearlyFullSubnet(t *testing.T) {
	w := newWorld(t, "m5.large", 20, 28)
	_, err := aws.New(w.cloud).CreateENI(t.Context(), aws.ENISpec{Subnet: "subnet-pod1", Secondary: 9}) // of eleven
	must(t, err)
	for n := range 20 { // all that two ENIs have
		if _, err := w.acquire(n); err != nil {
			t.Fatalf("pod %d: %v", n, err)
		}
	}
}
