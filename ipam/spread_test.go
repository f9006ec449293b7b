// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// TestNearlyFullSubnet: each ENI takes a slot. So the node creates an ENI in a subnet with room for all addresses of
// the ENI, and not in a nearly full one.
func TestNearlyFullSubnet(t *testing.T) {
	w := newWorld(t, "m5.large", 20, 28)
	_, err := aws.New(w.cloud).CreateENI(t.Context(), aws.ENISpec{Subnet: "subnet-pod1", Secondary: 9}) // leaves one
	must(t, err)
	for n := range 20 { // all that two ENIs have
		if _, err := w.acquire(n); err != nil {
			t.Fatalf("pod %d: %v", n, err)
		}
	}
}
