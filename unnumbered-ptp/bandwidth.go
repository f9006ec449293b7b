// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"math"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A bandwidth is the value of CNI's capability "bandwidth" (CNI conventions, "Dynamic Plugin specific fields"). The
// rates are in bits per second, and the bursts are in bits. A rate of 0 means no limit.
//
//codec:describe
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"` // to the pod
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"` // from the pod
	EgressBurst  uint64 `json:"egressBurst"`
}

// leastBurst is the smallest burst, in bytes. It has room for two packets of 64 KiB: the kernel sends such packets, and
// the network card splits them later. A packet that is larger than the burst would never pass.
const leastBurst = 128 << 10

// objects returns two limits: one for packets that leave through the links, and one for packets that arrive through the
// links. If a rate is 0, its limit is missing.
func (b bandwidth) objects(links []string) (objects []nl.Object) {
	for _, l := range []nl.Limit{
		{Rate: b.EgressRate, Burst: b.EgressBurst, Egress: true},
		{Rate: b.IngressRate, Burst: b.IngressBurst},
	} {
		if l.Rate == 0 {
			continue
		}
		former := max(l.Burst/8, leastBurst)
		l.Devs, l.Rate, l.Burst = links, max(l.Rate/8, 1), burstBytes(l.Rate, l.Burst)
		objects = append(objects, bandwidthLimit{l, former})
	}
	return objects
}

// A bandwidthLimit is a limit whose Check also accepts the burst of earlier releases. For a pod without a burst,
// earlier releases used the large burst that CRI-O sends (see burstBytes). Such pods may still run.
type bandwidthLimit struct {
	nl.Limit
	formerBurst uint64 // the burst of earlier releases, in bytes
}

func (l bandwidthLimit) Check(n *nl.NS) error {
	err := l.Limit.Check(n)
	if l.Burst = l.formerBurst; err != nil && l.Limit.Check(n) == nil {
		return nil
	}
	return err
}

// burstBytes returns the burst in bytes, for a rate in bits per second and a burst in bits. Without a burst, it returns
// the traffic of a tenth of a second. For a pod without a burst, containerd sends the highest 32-bit number, and CRI-O
// sends eight times this number. A burst of half a GB or more would not limit most traffic. So burstBytes treats both
// numbers like 0.
func burstBytes(rate, burst uint64) uint64 {
	if burst == 0 || burst >= math.MaxUint32 {
		burst = rate / 10
	}
	return max(burst/8, leastBurst)
}
