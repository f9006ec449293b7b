// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// checkLinks checks the links of the ENIs that serve pods. It compares their MTU with the
// boot ENI's, and with the one that a configuration gives to pods.
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
		if e.IsBoot() {
			boot = byMAC[e.MAC].MTU
		}
	}
	mtus := p.mtus()
	pods := map[string]bool{}
	for _, l := range p.state.Leases.All() {
		pods[l.ENI] = true
	}
	var found []Finding
	for _, id := range slices.Sorted(maps.Keys(p.state.ENIs)) {
		e := p.state.ENIs[id]
		l, ok := byMAC[e.MAC]
		if !ok || !e.Serving || e.Foreign {
			continue // checkAgreement misses it
		}
		pool := conf.PoolName(e.Pool)
		if from, ok := lease.Derived(pool); ok {
			pool = from
		}
		found = append(found, p.checkLink(id, l, boot, mtus[pool], pods[id])...)
	}
	lacking, err := p.checkFamilies()
	slaves, failed := p.checkSlaves()
	return slices.Concat(found, slaves, lacking), errors.Join(err, failed)
}

// mtus returns the largest MTU that pods of a pool are to have, by the name of the pool.
func (p *Node) mtus() map[string]int {
	all := map[string]int{}
	for _, config := range p.networks {
		ours := slaveConfig(config)
		for _, pool := range config.Policies() {
			name := conf.PoolName(pool.Pool)
			all[name] = max(all[name], ours.MTU)
		}
	}
	return all
}

// checkFamilies finds what every ADD would find: pods are to have a family of addresses that the link of the boot ENI
// has not. STATUS asks only for an address of any family.
func (p *Node) checkFamilies() ([]Finding, error) {
	networks, _ := conf.Networks(p.given) // checkConfig finds what is wrong with one
	var found []Finding
	for _, n := range networks {
		config, err := conf.Decode(n.File, n.IPAM)
		if n.IPAM == nil || err != nil {
			continue
		}
		own, err := p.pool.Host.Addrs(n.Pair.HostInterface)
		if err != nil || len(own) == 0 {
			continue // STATUS of the plugin says so
		}
		for _, f := range config.Policies()[0].Families {
			if !slices.ContainsFunc(own, func(a nl.Addr) bool {
				return nl.FamilyOf(a.Prefix.Addr()) == f && !a.Prefix.Addr().IsLinkLocalUnicast()
			}) {
				found = append(found, Finding{Severity: severe, About: n.Pair.HostInterface,
					Means: fmt.Sprintf("it has no %v address, and pods of the network %s are to have %[1]v: their ADD fails", f, n.Name),
					Do:    fmt.Sprintf("give the boot ENI an %v address, and see that the node configures it; or leave %[1]v out of ipFamilies", f)})
			}
		}
	}
	return found, nil
}

// mostMTU is the MTU inside a VPC (EC2 user guide, "Network MTU for your EC2 instance"). An
// ADD gives the boot ENI's MTU to an ENI for pods, unless it is larger than that.
const mostMTU = 9001

// checkLink checks one link. The arguments boot and pods are the MTUs of the boot ENI and of
// pods. A link that no pod uses may be down: it came back from a pod, and an ADD sets it up.
func (p *Node) checkLink(eni string, l nl.Link, boot, pods int, used bool) (found []Finding) {
	add := func(means, do string, fix func(context.Context) (string, error)) {
		found = append(found, Finding{Severity: severe, About: l.Name + " (" + eni + ")", Means: means, Do: do, fix: fix})
	}
	if !l.Up && used {
		up := nl.Up{Dev: l.Name}
		add("the link is down: its pods reach nothing", up.String(), p.apply(up))
	}
	if pods > l.MTU {
		add(fmt.Sprintf("its MTU is %d, and pods are to have %d: their ADD fails", l.MTU, pods), "lower the mtu of ipvlan in the conflist", nil)
		if boot >= pods {
			found[len(found)-1].Do += ", or drain the node: the next ADD gives the ENI the boot ENI's MTU"
		}
	} else if boot > l.MTU && boot <= mostMTU {
		means := fmt.Sprintf("its MTU is %d, that of the boot ENI %d: pods on it send smaller packets than others", l.MTU, boot)
		shared := p.pool.Host.Unshared(l)
		if up := (nl.Up{Dev: l.Name, MTU: boot}); shared == nil || !l.Up && !errors.Is(shared, nl.ErrShared) { // as an ADD
			add(means, up.String(), p.apply(up))
		} else { // its slaves would all get the MTU
			add(means, "drain the node: the next ADD gives the ENI the boot ENI's MTU", nil)
		}
		found[len(found)-1].Severity = warning
	}
	return found
}
