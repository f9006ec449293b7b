// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// TestNearlyFullSubnet: an ENI takes a slot for ever, so it goes where it can have all of its addresses, and not to the
// subnet that has one left.
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
