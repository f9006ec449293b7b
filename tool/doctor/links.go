// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// checkLinks looks at the links of the ENIs that serve pods, and compares their MTU with
// that of the boot ENI and with what the configuration gives pods.
func (p *Node) checkLinks(context.Context) ([]Finding, error) {
	links, err := p.pool.Host.Links()
	if err != nil {
		return nil, err
	}
	byMAC := map[string]nl.Link{}
	for _, l := range links {
		if _, known := byMAC[l.MAC]; !known && l.Kind != "ipvlan" {
			byMAC[l.MAC] = l
		}
	}
	boot := 0
	for _, e := range p.state.ENIs {
		if e.Index == 0 && e.Card == 0 {
			boot = byMAC[e.MAC].MTU
		}
	}
	var pods ipvlan.Config
	_ = json.Unmarshal(p.list.Plugin(conf.TypeIPVlan), &pods) // checkConfig finds what is wrong with it
	var found []Finding
	for _, id := range slices.Sorted(maps.Keys(p.state.ENIs)) {
		e := p.state.ENIs[id]
		l, ok := byMAC[e.MAC]
		if !ok || !e.Serving || e.Foreign {
			continue // checkAgreement misses it
		}
		found = append(found, p.checkLink(id, l, boot, pods.MTU)...)
	}
	return found, nil
}

// mostMTU is that of the network inside a VPC (EC2 user guide, "Network MTU for your EC2
// instance"). To an ENI for pods an ADD gives that of the boot ENI, if it is no more.
const mostMTU = 9001

// checkLink looks at one, where the boot ENI and pods are to have the MTU.
func (p *Node) checkLink(eni string, l nl.Link, boot, pods int) (found []Finding) {
	add := func(means, do string, fix func(context.Context) (string, error)) {
		found = append(found, Finding{Severity: severe, About: l.Name + " (" + eni + ")", Means: means, Do: do, fix: fix})
	}
	if !l.Up {
		up := nl.Up{Dev: l.Name}
		add("the link is down: its pods reach nothing", up.String(), p.apply(up))
	}
	if pods > l.MTU {
		add(fmt.Sprintf("its MTU is %d, and pods are to have %d: their ADD fails", l.MTU, pods), "lower the mtu of ipvlan in the conflist", nil)
	} else if boot > l.MTU && boot <= mostMTU {
		up := nl.Up{Dev: l.Name, MTU: boot}
		add(fmt.Sprintf("its MTU is %d, that of the boot ENI %d: pods on it send smaller packets than others", l.MTU, boot), up.String(), p.apply(up))
		found[len(found)-1].Severity = warning
	}
	return found
}
