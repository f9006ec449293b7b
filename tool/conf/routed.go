// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/chain"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// paths reviews whether the list has the plugins that the data paths of the pools need, and whether these plugins fit
// the data paths. Only the review compares the configurations of these plugins, because each plugin checks only its own
// configuration.
func (r *review) paths(at map[string]int) {
	var ipam lease.Config
	var pair ptp.Config
	var out egress.Config
	i, ok := at[TypeIPAM]
	if !ok || json.Unmarshal(r.Plugins[i].Raw, &ipam) != nil || ipam.Validate() != nil {
		return // the method member reports that
	}
	veth, slaves := ipam.Routed()
	if _, there := at[TypeIPVlan]; !there && len(veth) > 0 && len(slaves) > 0 {
		r.wrong("", `there is no %s, which the pools with dataPath "ipvlan" need: %s`, TypeIPVlan,
			strings.Join(slaves, ", "))
	}
	if k, there := at[TypeEgress]; there && json.Unmarshal(r.Plugins[k].Raw, &out) != nil {
		return
	}
	if k, there := at[TypePTP]; !there && len(veth) > 0 {
		r.wrong("", `there is no %s, which the pools with dataPath "veth" need: %s`, TypePTP, strings.Join(veth, ", "))
	} else if there && (json.Unmarshal(r.Plugins[k].Raw, &pair) != nil || pair.Validate() != nil) {
		return
	}
	if err := chain.Routed(&ipam, &pair, len(out.Egresses)); err != nil {
		for _, text := range strings.Split(err.Error(), "\n") {
			r.wrong(r.where(i), "%s", text)
		}
	}
}

// routed reviews plugins and keys that do not work with routed pods, and a key that works only with routed pods. i is
// the position of our plugin that has the pools. k is the position of our plugin that makes pairs.
func (r *review) routed(i, k int) {
	var ipam lease.Config
	var pair ptp.Config
	if json.Unmarshal(r.Plugins[i].Raw, &ipam) != nil || ipam.Validate() != nil ||
		json.Unmarshal(r.Plugins[k].Raw, &pair) != nil {
		return // the method member reports that
	}
	if veth, _ := ipam.Routed(); len(veth) > 0 {
		r.besideRouted(r.Plugins[k].Type)
	} else if pair.VethPrefix != "" {
		r.wrong(r.where(k), `vethPrefix: %q: no pool has dataPath "veth", so no pair gets this prefix, and an engine `+
			`for NetworkPolicy restricts no pod. Give a pool this dataPath, or leave vethPrefix out`, pair.VethPrefix)
	}
}

// besideRouted reviews which other plugins can disturb routed pods. ours is our plugin that makes the pairs.
func (r *review) besideRouted(ours string) {
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
			r.wrong(r.where(i), `mtu: %d: for a pod with dataPath "veth", tuning changes only one end of the pair, `+
				`so larger packets are lost: move mtu to %s`, c.MTU, ours)
		case m.Type == "portmap" && c.Backend != "nftables" && bit >= 0 && ptp.ENIMarks>>bit&1 != 0:
			r.wrong(r.where(i), `markMasqBit: %d is one of the bits %#x, which stand for ENIs with dataPath "veth". `+
				`Packets of pods would get another address: want another bit, such as 4, or "backend": "nftables"`, bit,
				ptp.ENIMarks)
		}
	}
}
