// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"strings"
	"time"
)

// latencies has the time that EC2 takes to answer, for each action that changes ENIs. The times are guesses, because
// AWS publishes none. AttachNetworkInterface takes long, because EC2 answers only after the instance has the new link.
var latencies = map[string]time.Duration{
	"AssignIpv6Addresses":             300 * time.Millisecond,
	"AssignPrivateIpAddresses":        300 * time.Millisecond,
	"UnassignIpv6Addresses":           300 * time.Millisecond,
	"UnassignPrivateIpAddresses":      300 * time.Millisecond,
	"CreateNetworkInterface":          700 * time.Millisecond,
	"AttachNetworkInterface":          1500 * time.Millisecond,
	"ModifyNetworkInterfaceAttribute": 300 * time.Millisecond,
	"DetachNetworkInterface":          500 * time.Millisecond,
	"DeleteNetworkInterface":          300 * time.Millisecond,
}

const describeLatency = 150 * time.Millisecond

// Latency returns how long the real EC2 takes to answer an action. The times are guesses. A Sim delays its answers by
// this time only after a call of [Sim.DelayAsEC2].
func Latency(action string) time.Duration {
	if d, ok := latencies[action]; ok {
		return d
	}
	return describeLatency
}

// DelayAsEC2 delays the answer to each Describe action, and to each action that changes ENIs. The delay is the
// [Latency] of the action. The function "stop" ends the delays.
func (s *Sim) DelayAsEC2() (stop func()) {
	each := func(of func(action string) time.Duration) {
		for action := range actions {
			if _, changes := latencies[action]; changes || strings.HasPrefix(action, "Describe") {
				s.Delay(action, of(action))
			}
		}
	}
	each(Latency)
	return func() { each(func(string) time.Duration { return 0 }) }
}
