// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// TestHintOfLast: EC2 refuses to assign addresses to an ENI, and then to create an ENI. The hint is about the second
// refusal.
func TestHintOfLast(t *testing.T) {
	for _, first := range []string{"InsufficientFreeAddressesInSubnet", "PrivateIpAddressLimitExceeded"} {
		w := newWorld(t, "m5.large", 28, 20)
		w.mustAcquire(0)
		w.EC2.Fail("AssignPrivateIpAddresses", first, -1)
		w.EC2.Fail("CreateNetworkInterface", "UnauthorizedOperation", -1)
		_, err := w.acquire(1)
		if e, ok := errors.AsType[*plugin.Error](err); !ok || !strings.Contains(e.Hint, "ec2:CreateNetworkInterface") {
			t.Errorf("%s: %+v: %v", first, e, err)
		}
	}
}
