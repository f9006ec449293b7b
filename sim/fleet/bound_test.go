// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// bound returns the earliest time at which the token buckets can let the last node make its last call. For each action,
// needs has the number of calls that each node makes after its arrival. If needs is empty, a node is ready when it
// arrives.
func bound(needs map[string]int, arrivals []time.Duration) (most time.Duration) {
	most = arrivals[len(arrivals)-1]
	for action, n := range needs {
		most = max(most, boundOf(api.BucketOf(action), n, arrivals))
	}
	return most
}

func boundOf(b ec2sim.Bucket, calls int, arrivals []time.Duration) (end time.Duration) {
	waiting, next, tokens := 0, 0, b.Size
	for now := time.Duration(0); next < len(arrivals) || waiting > 0; now += time.Second {
		if now > 0 {
			tokens = min(b.Size, tokens+b.Refill)
		}
		for next < len(arrivals) && arrivals[next] < now+time.Second {
			waiting += calls
			next++
		}
		if made := min(tokens, waiting); made > 0 {
			tokens, waiting, end = tokens-made, waiting-made, now
		}
	}
	return end
}
