// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A pair is the veth pair of a pod and the addresses behind it.
type pair struct {
	veth    nl.Veth
	addrs   []netip.Addr
	mtu     int    // of the pod's link to the VPC
	loop    string // how the pod reaches a backend of a service: redirect, masquerade, or not at all
	callers bool   // who calls by the veth is answered by it
}

func newPair(r *plugin.Request[Config], s *scene) pair {
	host, pod := macs(r.Network, r.Attachment)
	return pair{
		veth: nl.Veth{
			Name: vethName(r.Network, r.Attachment), MAC: host,
			Peer: r.Config.ContainerInterface, PeerMAC: pod, PeerNS: s.pod, PeerGroup: r.LinkGroup(),
			MTU: cmp.Or(r.Config.MTU, s.node.mtu), Group: nl.OwnGroup, Alias: alias(r),
			NoLinkLocal: true, Deaf: !s.node.forwards6(r.Config),
		},
		addrs:   addrsOf(r.Prev),
		mtu:     s.podMTU,
		callers: r.Config.KeepCaller,
	}
}

// pair is the pod's pair as it is to be made, or, where it is there, as it was: it keeps its
// MTU when hostInterface's changes, unless the configuration says another.
func (s *scene) pair(r *plugin.Request[Config]) (p pair, there bool) {
	p = newPair(r, s)
	l, err := s.host.LinkByName(p.veth.Name)
	if err == nil && r.Config.MTU == 0 {
		p.veth.MTU = l.MTU
	}
	return p, !errors.Is(err, fs.ErrNotExist)
}

func addrsOf(prev *types100.Result) []netip.Addr {
	var all []netip.Addr
	for _, c := range prev.IPs {
		if a, ok := plugin.Addr(c.Address.IP); ok && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// has tells whether the pod has addresses of a family.
func (p pair) has(v6 bool) bool {
	_, is := p.first(v6)
	return is
}

// families are those of the pod's addresses: of IPv4 false, of IPv6 true.
func (p pair) families() []bool {
	return slices.DeleteFunc([]bool{false, true}, func(v6 bool) bool { return !p.has(v6) })
}

// first is the pod's first address of a family.
func (p pair) first(v6 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(p.addrs, func(a netip.Addr) bool { return a.Is6() == v6 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return p.addrs[i], true
}

// byHost are the destinations in the pod's families that are reached by the node.
func (p pair) byHost(c Config) (all []netip.Prefix) {
	for _, dst := range c.hostCIDRs {
		if p.has(dst.Addr().Is6()) {
			all = append(all, dst)
		}
	}
	return all
}
