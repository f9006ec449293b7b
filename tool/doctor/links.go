// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
)

// checkLinks checks the links of the ENIs that serve pods. It compares the MTUs of these links with two MTUs: the MTU
// of the boot ENI, and the MTU that a configuration gives to pods.
func (p *Node) checkLinks(context.Context) ([]Finding, error) {
	links, err := p.kernel.Links()
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
	mtus := p.poolMTUs()
	pods := map[string]bool{}
	for _, l := range p.state.Leases.All() {
		pods[l.ENI] = true
	}
	var found []Finding
	for _, id := range slices.Sorted(maps.Keys(p.state.ENIs)) {
		e := p.state.ENIs[id]
		l, ok := byMAC[e.MAC]
		if !ok || !e.Serving || e.Foreign {
			continue // checkAgreement reports a missing link
		}
		pool := conf.PoolName(e.Pool)
		if from, ok := lease.Derived(pool); ok {
			pool = from
		}
		found = append(found, p.checkLink(id, l, boot, mtus[pool], pods[id])...)
		if !e.IsBoot() && pods[id] {
			found = append(found, p.checkRouters(id, l)...)
		}
	}
	lacking, err := p.checkFamilies()
	found = slices.Concat(found, p.checkBoot(pods), lacking)
	if p.pool == nil {
		return found, err
	}
	unguarded, err2 := p.checkGuards()
	slaves, err3 := p.checkSlaves()
	return slices.Concat(found, p.checkSettings(byMAC, pods), unguarded, slaves), errors.Join(err, err2, err3)
}

// checkSettings returns a finding for each link that still has the changes of a pod that had the whole ENI.
func (p *Node) checkSettings(byMAC map[string]nl.Link, pods map[string]bool) (found []Finding) {
	for _, id := range slices.Sorted(maps.Keys(p.state.ENIs)) {
		e := p.state.ENIs[id]
		l, here := byMAC[e.MAC]
		if !here || pods[id] || len(e.Settings) == 0 {
			continue
		}
		if err := p.pool.Host.Kept(l, e.Settings); err != nil {
			found = append(found, Finding{Severity: warning, About: l.Name + " (" + id + ")",
				Means: fmt.Sprintf("a pod had this whole ENI, and has changed the ENI's link: %v. The next ADD for "+
					"this ENI undoes the change. If the ADD cannot undo the change, the ADD fails", err),
				Do: "put back the old setting, or wait for this ADD. If the ADD fails, detach the ENI or reboot the " +
					"node, to reset the link",
				partly: true,
				fix: func(context.Context) (string, error) {
					return "put back the settings of " + l.Name, p.pool.Host.PutBack(l, e.Settings)
				}})
		}
	}
	return found
}

// checkGuards finds the lost guards of ENIs' links (see [nl.Guard]). Without a guard, pods on the link can send packets
// directly to the node. No security group sees these packets, and they can have any source address.
func (p *Node) checkGuards() (found []Finding, err error) {
	lost, err := repair.Unguarded(p.pool.Host, p.state)
	for _, g := range lost {
		found = append(found, Finding{Severity: severe, About: g.Link,
			Means: fmt.Sprint(g.Check(p.pool.Host),
				". A program has removed or changed the guard of the link, or an earlier release made the pods of "+
					"the link"),
			Do: runRepair + ". The next ADD at this ENI also puts the guard back. Configure firewalld or " +
				"nftables.service to flush only their own tables",
			fix:    func(context.Context) (string, error) { return g.String(), g.Restore(p.pool.Host) },
			partly: true})
	}
	return found, err
}

// checkBoot returns a finding if pods have addresses of the boot ENI.
func (p *Node) checkBoot(pods map[string]bool) (found []Finding) {
	for id, e := range p.state.ENIs {
		if e.IsBoot() && pods[id] {
			found = append(found, Finding{Severity: note, About: id,
				Means: "pods have addresses of the boot ENI. A pod with CAP_NET_ADMIN can give the node's own " +
					"address to its link. The node's traffic then goes to that pod",
				Do: "set interfaceIndex to 1, if the instance type has room for further ENIs. Or give no pod " +
					"CAP_NET_ADMIN"})
		}
	}
	return found
}

// checkRouters returns a finding if the node takes IPv6 routes and addresses from routers on the link of a secondary
// ENI.
func (p *Node) checkRouters(eni string, l nl.Link) (found []Finding) {
	k := nl.Sysctl{Key: "net/ipv6/conf/" + l.Name + "/accept_ra", Value: "0", Optional: true}
	if err := p.checkSysctl(k); err != nil && !errors.Is(err, fs.ErrNotExist) {
		found = append(found, Finding{Severity: note, About: l.Name + " (" + eni + ")",
			Means: "the node takes IPv6 routes and addresses from router advertisements on this link, which is for " +
				"pods. The node's own packets may then leave by this link",
			Do:  k.String() + correctSetting,
			fix: p.objectFix(k), partly: true})
	}
	return found
}

// poolMTUs returns the largest MTU that a configuration gives to the pods of each pool. The key is the pool's name.
func (p *Node) poolMTUs() map[string]int {
	all := map[string]int{}
	for _, l := range p.ours {
		ours := slaveConfig(l)
		for _, pool := range l.IPAM.Policies() {
			name := conf.PoolName(pool.Pool)
			all[name] = max(all[name], ours.MTU)
		}
	}
	return all
}

// checkFamilies checks that the boot ENI's link has an address of each family in ipFamilies. If an address is missing,
// each ADD fails. The plugin's STATUS does not find this fault if the link has an address of another family.
func (p *Node) checkFamilies() ([]Finding, error) {
	networks, _ := p.conflists.Networks() // checkConfig reports mistakes in networks
	var found []Finding
	for _, n := range networks {
		if n.IPAM == nil {
			continue
		}
		own, err := p.kernel.Addrs(n.Pair.HostInterface)
		if err != nil || len(own) == 0 {
			continue // the plugin's STATUS reports a link that is missing or has no address
		}
		for _, f := range n.IPAM.Policies()[0].Families {
			if !slices.ContainsFunc(own, func(a nl.Addr) bool {
				return nl.FamilyOf(a.Prefix.Addr()) == f && !a.Prefix.Addr().IsLinkLocalUnicast()
			}) {
				found = append(found, Finding{Severity: severe, About: n.Pair.HostInterface,
					Means: fmt.Sprintf(
						"this link has no %v address, but pods of the network %s need %[1]v, so each of their ADDs "+
							"fails", f,
						n.Name),
					Do: fmt.Sprintf("give the boot ENI an %v address, and check that the node configures this "+
						"address. Or remove %[1]v from ipFamilies", f)})
			}
		}
	}
	return found, nil
}

// checkUnshared returns nl.ErrShared if another link uses the link l. For a record of a node, checkUnshared always
// returns nl.ErrShared, because a record does not show which links use a link.
func (p *Node) checkUnshared(l nl.Link) error {
	if p.pool == nil {
		return nl.ErrShared
	}
	return p.pool.Host.Unshared(l)
}

// vpcMTU is the MTU inside a VPC (EC2 user guide, "Network MTU for your EC2 instance"). An ADD gives the boot ENI's MTU
// to the ENIs of pods, if this MTU is at most vpcMTU.
const vpcMTU = 9001

// drainForMTU is how an ENI gets another MTU.
const drainForMTU = "drain the node. The next ADD then gives the ENI the boot ENI's MTU"

// checkLink checks the link of an ENI. bootMTU is the MTU of the boot ENI. podMTU is the MTU that a conflist gives to
// pods of this ENI. If used is false, no pod uses the link. The link may then be down, for example after a pod has
// returned the whole ENI.
func (p *Node) checkLink(eni string, l nl.Link, bootMTU, podMTU int, used bool) (found []Finding) {
	add := func(means, do string, fix func(context.Context) (string, error)) {
		found = append(found, Finding{Severity: severe, About: l.Name + " (" + eni + ")", Means: means,
			Do: do, fix: fix})
	}
	if !l.Up && used {
		up := nl.Up{Dev: l.Name}
		add("the link is down, so pods on this ENI do not reach the VPC", up.String(), p.objectFix(up))
	}
	if podMTU > l.MTU {
		add(fmt.Sprintf("the link's MTU is %d, but the conflist gives pods the MTU %d, so each ADD on this ENI fails",
			l.MTU, podMTU),
			"lower the mtu of ipvlan in the conflist", nil)
		if bootMTU >= podMTU {
			found[len(found)-1].Do += ". Or " + drainForMTU
		}
	} else if bootMTU > l.MTU && bootMTU <= vpcMTU {
		means := fmt.Sprintf("the link's MTU is %d, and the MTU of the boot ENI is %d, so pods on this ENI send "+
			"smaller packets than other pods", l.MTU, bootMTU)
		shared := p.checkUnshared(l)
		// like an ADD, the fix changes the MTU only under this condition
		if up := (nl.Up{Dev: l.Name, MTU: bootMTU}); shared == nil || !l.Up && !errors.Is(shared, nl.ErrShared) {
			add(means, up.String(), p.objectFix(up))
		} else { // no fix while other links use this link, because all slaves of this link would get the new MTU, too
			add(means, drainForMTU, nil)
		}
		found[len(found)-1].Severity = warning
	}
	return found
}
