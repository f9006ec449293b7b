// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// checkLinks looks at the links of the ENIs that serve pods, and compares their MTU with
// that of the boot ENI and with what the configuration gives pods.
func (p *patient) checkLinks(context.Context) ([]ailment, error) {
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
	_ = json.Unmarshal(p.list.plugin(typeIPVlan), &pods) // checkConfig finds what is wrong with it
	var found []ailment
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
func (p *patient) checkLink(eni string, l nl.Link, boot, pods int) (found []ailment) {
	add := func(means, do string, fix func(context.Context) (string, error)) {
		found = append(found, ailment{Severity: severe, About: l.Name + " (" + eni + ")", Means: means, Do: do, fix: fix})
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
		found[len(found)-1].Severity = doubted
	}
	return found
}

// checkAddresses looks for addresses of pods on the node's own links: the node then answers
// in the place of the pod. amazon-ec2-net-utils, DHCP and cloud-init put them there.
func (p *patient) checkAddresses(context.Context) ([]ailment, error) {
	own, err := p.pool.Host.Addrs("")
	if err != nil {
		return nil, err
	}
	pods := map[netip.Addr]holding{}
	for _, h := range tally(p.state, p.waits, time.Now()) {
		if h.State != stateNode {
			pods[h.Addr] = h
		}
	}
	var found []ailment
	for _, a := range own {
		h, ours := pods[a.Prefix.Addr()]
		if !ours {
			continue
		}
		means := "it is on the link " + a.Dev + " of the node, and is for pods: the next pod that gets it is not reached"
		if h.leased() {
			means = "it is on the link " + a.Dev + " of the node, which answers in the place of " + h.owner()
		}
		found = append(found, ailment{Severity: severe, About: a.Prefix.Addr().String(), Means: means,
			Do: fmt.Sprintf("ip address del %v dev %s; and keep whoever has put it there off pods' ENIs, by cni-links.service", a.Prefix, a.Dev), fix: p.strip(a)})
	}
	return found, nil
}

// strip is a fix that takes an address from the node. The kernel takes further ones of the
// same subnet with the first, which it may not, so that is left to people.
func (p *patient) strip(a nl.Addr) func(context.Context) (string, error) {
	if !a.Prefix.IsSingleIP() {
		return nil
	}
	return func(context.Context) (string, error) {
		return fmt.Sprintf("took %v from %s", a.Prefix, a.Dev), nl.Wiring{{NS: p.pool.Host, Object: a}}.Del()
	}
}

// checkLeftovers looks for what is left of pods that are gone, and for what all pods share.
func (p *patient) checkLeftovers(context.Context) ([]ailment, error) {
	rules, err1 := p.pool.Host.Rules()
	links, err2 := p.pool.Host.Links()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	var found []ailment
	for _, r := range rules {
		here := slices.ContainsFunc(links, func(l nl.Link) bool { return l.Name == r.IIF })
		if r.Protocol != nl.RouteProtocol || r.IIF == "" || here {
			continue
		}
		found = append(found, ailment{Severity: doubted, About: r.String(), Means: "the link is gone, with a pod that ended without a DEL; each packet is compared with the rule",
			Do: Name + " registry-gc --free-after=15m deletes it; look whether cni-gc.timer is active", fix: p.removeDetached})
	}
	for _, l := range links {
		if owner := p.strayVeth(l); owner != "" {
			found = append(found, ailment{Severity: doubted, About: l.Name, Means: "it is of " + owner + ", which has no lease: its address may be given to another pod",
				Do: "if that pod is gone: ip link del " + l.Name + "; else delete the pod"})
		}
	}
	lost, err := p.lost()
	return append(found, lost...), err
}

// removeDetached is a fix that deletes all such rules at once. It looks at them again.
func (p *patient) removeDetached(context.Context) (string, error) {
	_, err := p.pool.Host.RemoveDetached()
	return "deleted", err
}

// strayVeth is whose a veth of ours is, if its pod has no lease; else "". Its alias says
// that: our name, the network, the container and the interface. After the registry was lost,
// leases do not know whose they are, and nothing is said.
func (p *patient) strayVeth(l nl.Link) string {
	words := strings.Fields(l.Alias)
	if l.Group != nl.OwnGroup || l.Kind != "veth" || len(words) < 4 {
		return ""
	}
	key := registry.Key{Network: words[1], Attachment: registry.Attachment{ContainerID: words[2], IfName: words[3]}}
	for _, lease := range p.state.Leases.All() {
		if lease.Key == key || lease.ContainerID == "" {
			return ""
		}
	}
	return key.String()
}

// checkState looks at the registry's file and folder.
func (p *patient) checkState(context.Context) ([]ailment, error) {
	dir := registry.Dir()
	var found []ailment
	var f unix.Statfs_t
	if err := unix.Statfs(dir, &f); err != nil {
		return nil, err
	}
	if f.Type != unix.TMPFS_MAGIC {
		found = append(found, ailment{Severity: doubted, About: dir, Means: "it is no tmpfs: what it says of pods outlives a boot, which they do not, and each ADD waits for a disk",
			Do: "mount /run as tmpfs, and do not set CNI_IPVLAN_VPC_STATE_DIR"})
	}
	if _, err := p.pool.Registry.View(); err != nil {
		found = append(found, ailment{Severity: severe, About: dir, Means: "the registry cannot be read: " + err.Error(),
			Do: "if a later release wrote it, install that; else delete it: it is rebuilt from metadata and the kernel"})
	}
	bad, _ := filepath.Glob(filepath.Join(dir, "*.bad-*"))
	for _, b := range bad {
		found = append(found, ailment{Severity: noted, About: b, Means: "a registry that could not be parsed was set aside, and rebuilt",
			Do: "report it with the file, and delete that"})
	}
	return found, nil
}
