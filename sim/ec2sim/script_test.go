// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestScript: each request has the outcome that the script says, and changes EC2 only if EC2 carries out the request.
func TestScript(t *testing.T) {
	sim, _ := start(t, world)
	const call = "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1"
	sim.Script("AssignPrivateIpAddresses", DoneLost, Refused("RequestLimitExceeded"), DoneBut("InternalError"),
		UndoneLost, Outcome{Undone: true}, Answered)
	attempt := func() (heard string) {
		defer func() {
			if r := recover(); r != nil {
				if r != http.ErrAbortHandler {
					t.Errorf("panic: %v", r)
				}
				heard = "nothing"
			}
		}()
		heard, _ = refused(t, sim, call)
		return heard
	}
	type step struct {
		Heard string
		Addrs int // the number of the ENI's addresses after the request
	}
	var got []step
	for range 7 {
		heard := attempt()
		got = append(got, step{heard, len(sim.ENIs()[0].Addrs)})
	}
	first := got[0].Addrs
	want := []step{
		{"nothing", first}, {"503 RequestLimitExceeded", first}, {"500 InternalError", first + 1},
		{"nothing", first + 1},
		{"nothing", first + 1}, {"200", first + 2}, {"200", first + 3},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	calls := sim.Calls()
	if got := calls[3].String(); got != long(call)+": answer lost" {
		t.Error(got)
	}
}
