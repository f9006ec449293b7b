// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"math"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A bandwidth is CNI's capability of that name (CNI conventions, "Dynamic Plugin specific
// fields"): bits per second, and bits at once. 0 is no limit.
//
//codec:describe
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"` // to the pod
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"` // from the pod
	EgressBurst  uint64 `json:"egressBurst"`
}

// leastBurst has room for two packets as programs send them, which the network card splits
// later. A packet that is larger than the burst would never pass.
const leastBurst = 128 << 10

// objects are the limits for what leaves by the pod's links, and for what arrives.
func (b bandwidth) objects(links []string) (objects []nl.Object) {
	for _, l := range []nl.Limit{
		{Rate: b.EgressRate, Burst: b.EgressBurst, Egress: true},
		{Rate: b.IngressRate, Burst: b.IngressBurst},
	} {
		if l.Rate == 0 {
			continue
		}
		l.Devs, l.Rate, l.Burst = links, max(l.Rate/8, 1), burst(l.Rate, l.Burst)
		objects = append(objects, l)
	}
	return objects
}

// burst is in bytes. Without a value it is a tenth of a second's worth. containerd and CRI-O
// then send the highest number of 32 bits. Half a GB would be no limit for most traffic.
func burst(rate, bits uint64) uint64 {
	if bits == 0 || bits == math.MaxUint32 {
		bits = rate / 10
	}
	return max(bits/8, leastBurst)
}
