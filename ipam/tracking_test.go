// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// bootTracks sets timeouts of the boot ENI's connection tracking.
func (w *world) bootTracks(params ...string) {
	w.Helper()
	w.Operate("ModifyNetworkInterfaceAttribute", append(params, "NetworkInterfaceId", w.EC2.ENIs()[0].ID)...)
}

const (
	establishedParam = "ConnectionTrackingSpecification.TcpEstablishedTimeout"
	streamParam      = "ConnectionTrackingSpecification.UdpStreamTimeout"
)

// TestTracking: a new ENI has the timeouts of the boot ENI, except those of the configuration.
func TestTracking(t *testing.T) {
	for _, tt := range []struct {
		name   string
		boot   []string
		config registry.Tracking
		want   ec2sim.Tracking
	}{
		{"nothing is set", nil, registry.Tracking{}, ec2sim.Tracking{}},
		{"of the boot ENI", []string{establishedParam, "7200"}, registry.Tracking{},
			ec2sim.Tracking{TCPEstablished: 7200}},
		{"of the configuration", nil, registry.Tracking{UDP: 60}, ec2sim.Tracking{UDP: 60}},
		{"of both", []string{establishedParam, "7200", streamParam, "120"}, registry.Tracking{TCPEstablished: 86400},
			ec2sim.Tracking{TCPEstablished: 86400, UDPStream: 120}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			if tt.boot != nil {
				w.bootTracks(tt.boot...)
			}
			w.policy.Tracking = tt.config
			w.mustAcquire(1)
			if got := w.EC2.ENIs()[1].Tracking; got != tt.want {
				t.Errorf("the new ENI has %+v, want %+v", got, tt.want)
			}
			var asked []string
			for _, c := range w.EC2.Calls() {
				asked = append(asked, c.Action)
			}
			if i := slices.Index(asked, "CreateNetworkInterface"); slices.Contains(asked[i:],
				"DescribeNetworkInterfaces") {
				t.Errorf("EC2 was asked for the attached ENIs again: %v", asked)
			}
		})
	}
}

// TestTrackingAgain: a process ends without EC2's answer. The next process repeats the call with the same timeouts,
// although the boot ENI or the configuration has other timeouts by now.
func TestTrackingAgain(t *testing.T) {
	for name, change := range map[string]func(*world){
		"the configuration": func(w *world) { w.policy.Tracking = registry.Tracking{TCPEstablished: 600} },
		"the boot ENI":      func(w *world) { w.bootTracks(establishedParam, "600") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			w.hideNew()
			w.bootTracks(establishedParam, "7200")
			w.policy.Timeout = time.Second
			w.EC2.Script("CreateNetworkInterface", slices.Repeat([]ec2sim.Outcome{ec2sim.DoneLost}, 50)...)
			for w.EC2.Asked("CreateNetworkInterface") == 0 { // on a busy machine, the time may end before the call
				if _, err := w.acquire(1); err == nil {
					t.Fatal("no error")
				}
			}
			w.EC2.Script("CreateNetworkInterface")
			change(w)
			w.policy.Timeout = 10 * time.Second
			w.mustAcquire(1)
			if enis := w.EC2.ENIs(); len(enis) != 2 || enis[1].Tracking != (ec2sim.Tracking{TCPEstablished: 7200}) {
				t.Errorf("got %+v, want the boot ENI and one as it was asked for at first", enis)
			}
			w.noneLeaked()
			w.consistent()
		})
	}
}
