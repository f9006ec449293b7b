// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"math"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A bandwidth is the capability of that name (CNI conventions, "Dynamic Plugin specific
// fields"): bits in a second, and bits at once. 0 is no limit.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"` // to the pod
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"` // from the pod
	EgressBurst  uint64 `json:"egressBurst"`
}

// leastBurst is room for two packets as programs send them, which the network card
// cuts later: one that is larger than the burst would never pass.
const leastBurst = 128 << 10

// objects are the limits of what goes out by the pod's links, and of what comes in.
func (b bandwidth) objects(r *plugin.Request[Config]) (objects []nl.Object) {
	for _, l := range []nl.Limit{
		{Rate: b.EgressRate, Burst: b.EgressBurst, Egress: true},
		{Rate: b.IngressRate, Burst: b.IngressBurst},
	} {
		if l.Rate == 0 {
			continue
		}
		l.Devs, l.Rate, l.Burst = links(r), max(l.Rate/8, 1), burst(l.Rate, l.Burst)
		objects = append(objects, l)
	}
	return objects
}

// burst is in bytes. Where nobody has said, what a tenth of a second brings: containerd
// and CRI-O then send the highest number of 32 bits, and half a GB would be no limit
// for most of what a pod does.
func burst(rate, bits uint64) uint64 {
	if bits == 0 || bits == math.MaxUint32 {
		bits = rate / 10
	}
	return max(bits/8, leastBurst)
}
