// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import "testing"

// TestOperate: a fault does not affect a call of Operate, and Calls does not return this call.
func TestOperate(t *testing.T) {
	sim, _ := start(t, world)
	const action = "AssignPrivateIpAddresses"
	sim.Fail(action, "InternalError", 1)
	id, before := sim.ENIs()[0].ID, len(sim.ENIs()[0].Addrs)
	sim.ResetCalls()
	one := map[string]string{"NetworkInterfaceId": id, "SecondaryPrivateIpAddressCount": "1"}
	if err := sim.Operate(action, one); err != nil {
		t.Fatal(err)
	}
	if got := len(sim.ENIs()[0].Addrs) - before; got != 1 || len(sim.Calls()) != 0 {
		t.Errorf("%d addresses more and the calls %v, want 1 and none", got, sim.Calls())
	}
	one["NetworkInterfaceId"] = "eni-0123456789abcdef0"
	if err := sim.Operate(action, one); err == nil {
		t.Error("an ENI that there is not has got an address")
	}
	if code, _ := refused(t, sim, action+
		" NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1"); code != "500 InternalError" {
		t.Errorf("the fault is gone: %s", code)
	}
}
