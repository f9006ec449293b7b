// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import "testing"

// TestTracking sets the timeouts of an ENI at its creation, and changes one of them later.
func TestTracking(t *testing.T) {
	sim, _ := start(t, world)
	must(t, sim, create+" ConnectionTrackingSpecification.TcpEstablishedTimeout=60 "+
		"ConnectionTrackingSpecification.UdpStreamTimeout=180")
	wants := func(id string, want Tracking) {
		t.Helper()
		for _, e := range sim.ENIs() {
			if e.ID == id && e.Tracking != want {
				t.Errorf("%s has %+v, want %+v", id, e.Tracking, want)
			}
		}
	}
	long := sim.ENIs()[1].ID
	wants(long, Tracking{TCPEstablished: 60, UDPStream: 180})
	must(t, sim, "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-2 "+
		"ConnectionTrackingSpecification.TcpEstablishedTimeout=432000")
	wants(long, Tracking{TCPEstablished: 432000, UDPStream: 180})
	wants(sim.ENIs()[0].ID, Tracking{})
}
