// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/chain"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// reviewDataPaths reviews whether the list has the plugins that the data paths of the pools need. It also reviews
// whether these plugins fit the data paths. A plugin sees only its own configuration, so it cannot check this.
func (r *review) reviewDataPaths(at map[string]int) {
	var ipam lease.Config
	var pair ptp.Config
	var out egress.Config
	i, ok := at[TypeIPAM]
	if !ok || json.Unmarshal(r.Plugins[i].Raw, &ipam) != nil || ipam.Validate() != nil {
		return // reviewPlugin reports the mistake
	}
	veth, slaves := ipam.Routed()
	k, paired := at[TypePTP]
	lonely := len(veth) > 0 || paired && k == i+1 // no plugin of another project makes the pod's link
	if _, there := at[TypeIPVlan]; !there && lonely && len(slaves) > 0 {
		r.report("", `there is no %s, which these pools with dataPath "ipvlan" need: %s`, TypeIPVlan,
			strings.Join(slaves, ", "))
	}
	if k, there := at[TypeEgress]; there && json.Unmarshal(r.Plugins[k].Raw, &out) != nil {
		return
	}
	if k, there := at[TypePTP]; !there && len(veth) > 0 {
		r.report("", `there is no %s, which these pools with dataPath "veth" need: %s`, TypePTP, strings.Join(veth, ", "))
	} else if there && (json.Unmarshal(r.Plugins[k].Raw, &pair) != nil || pair.Validate() != nil) {
		return
	}
	r.reportLines(r.nameOf(i), chain.Routed(&ipam, &pair, len(out.Egresses)))
}

// reviewRouted reviews plugins and keys that do not work with routed pods, and a key that works only with routed pods.
// The pools are in our plugin at position i, and our plugin at position k makes the pairs.
func (r *review) reviewRouted(i, k int) {
	var ipam lease.Config
	var pair ptp.Config
	if json.Unmarshal(r.Plugins[i].Raw, &ipam) != nil || ipam.Validate() != nil ||
		json.Unmarshal(r.Plugins[k].Raw, &pair) != nil {
		return // reviewPlugin reports the mistake
	}
	r.reviewServices(i, k, &ipam, &pair)
	r.reviewMTU(&ipam)
	if veth, _ := ipam.Routed(); len(veth) > 0 {
		r.reviewBesideRouted(r.Plugins[k].Type)
	} else if pair.VethPrefix != "" {
		r.report(r.nameOf(k), `vethPrefix: %q: no pool has dataPath "veth", so no pair gets this prefix, and an `+
			`engine for NetworkPolicy restricts no pod. Give a pool this dataPath, or leave vethPrefix out`, pair.VethPrefix)
	}
}

// allRouted reports whether all pools have dataPath "veth", so that no pod has an ipvlan slave.
func (r *review) allRouted() bool {
	for _, m := range r.Plugins {
		var ipam lease.Config
		if (m.Type == TypeIPAM || m.Type == TypeAll) && json.Unmarshal(m.Raw, &ipam) == nil && ipam.Validate() == nil {
			_, slaves := ipam.Routed()
			return len(slaves) == 0
		}
	}
	return false
}

// reviewServices reviews whether pods reach Services and hostPorts. If routeToCidrs has 0.0.0.0/0, packets from pods to
// Services leave by the ENI, and the VPC does not know Services.
func (r *review) reviewServices(i, k int, ipam *lease.Config, pair *ptp.Config) {
	var wrong values.Mistakes // reviewPlugin reports these mistakes
	_, slaves := ipam.Routed()
	for _, p := range wrong.Prefixes("routeToCidrs", ipam.RouteToCIDRs) {
		if p.Addr().Is4() && p.Bits() == 0 && len(pair.HostCIDRs) == 0 && len(slaves) > 0 {
			r.report(r.nameOf(i), `routeToCidrs: %q: want the CIDRs of the cluster's Services in hostCidrs, `+
				`for example "172.20.0.0/16". Without hostCidrs, calls to Services leave by the ENI and get no answer`,
				p)
		}
	}
	others := func(m Member) bool { return m.Type == "portmap" }
	if pair.NodePorts != nil && *pair.NodePorts == "" && slices.ContainsFunc(r.Plugins, others) {
		r.report(r.nameOf(k), `nodePorts: "": want a range that has the hostPorts of portmap, for example "1:32767", `+
			`because callers get no answer from a hostPort outside of this range`)
	}
}

// reviewMTU reviews whether the links of pods can have IPv6. The kernel removes IPv6 from a link whose MTU is below
// 1280.
func (r *review) reviewMTU(ipam *lease.Config) {
	if !slices.Contains(ipam.Policies()[0].Families, lease.IPv6) {
		return
	}
	for i, m := range r.Plugins {
		var c struct {
			MTU int `json:"mtu"`
		}
		if slices.Contains(Types, m.Type) && json.Unmarshal(m.Raw, &c) == nil && c.MTU > 0 && c.MTU < 1280 {
			r.report(r.nameOf(i), "mtu: %d: want 1280 or more, because ipFamilies has IPv6, and the kernel gives no "+
				"IPv6 to a link with a smaller MTU", c.MTU)
		}
	}
}

// reviewBesideRouted reviews the plugins that can disturb routed pods. pairType is the type of the plugin that makes
// the pairs.
func (r *review) reviewBesideRouted(pairType string) {
	for i, m := range r.Plugins {
		var c struct {
			MTU         int    `json:"mtu"`
			Backend     string `json:"backend"`
			MarkMasqBit *int   `json:"markMasqBit"`
		}
		if json.Unmarshal(m.Raw, &c) != nil {
			continue
		}
		bit := *cmp.Or(c.MarkMasqBit, new(-1))
		switch {
		case m.Type == "tuning" && c.MTU != 0:
			r.report(r.nameOf(i), `mtu: %d: for a pod with dataPath "veth", tuning changes the MTU of only one end of the `+
				`pair. So large packets are lost: move "mtu" to %s`, c.MTU, pairType)
		case m.Type == "portmap" && c.Backend != "nftables" && bit >= 0 && ptp.ENIMarks>>bit&1 != 0:
			r.report(r.nameOf(i), `markMasqBit: %d is one of the bits %#x, which stand for ENIs with dataPath "veth". `+
				`Packets of pods would get another source address. Want another bit, such as 4, or "backend": "nftables"`, bit,
				ptp.ENIMarks)
		}
	}
}
