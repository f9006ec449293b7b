// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// jumbo is the MTU of a VPC, and the internet's is 1500 (EC2 user guide: "Network MTU for your EC2 instance").
const (
	jumbo    = 9001
	ethernet = 1500
)

// The rules of an ENI, in the order they are asked.
const (
	prefInternet = 100 // from the address that has a public one, to anywhere outside
	prefOwn      = 200 // from an address that the ENI has
	prefAny      = 250 // from any, if EC2 does not check this ENI
	prefSpoofed  = 300 // from any other
)

// follow makes the fabric as EC2 says that it is.
func (f *Fabric) follow(c ec2sim.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.run == nil {
		return // closed
	}
	if err := f.apply(c); err != nil {
		f.failed = errors.Join(f.failed, fmt.Errorf("%s %s: %w", c.ENI.ID, c.Kind, err))
	}
}

func (f *Fabric) apply(c ec2sim.Change) error {
	i := f.instances[c.Instance]
	if i == nil && f.booting != nil && c.Kind == ec2sim.Attached {
		i, f.booting = f.booting, nil
		f.instances[c.Instance] = i
	}
	if i == nil {
		return nil // an ENI that is plugged in nowhere
	}
	if c.Kind == ec2sim.Detached {
		delete(f.mapped, c.ENI.ID)
		return errors.Join(f.plug(c.ENI.ID, nil), f.translate())
	}
	if err := f.plug(c.ENI.ID, f.wiring(c.ENI, i)); err != nil {
		return err
	}
	if c.ENI.PublicIP.IsValid() {
		f.mapped[c.ENI.ID] = mapping{c.ENI.Addrs[0], c.ENI.PublicIP}
	}
	if c.Kind == ec2sim.Attached && c.ENI.Index == 0 && c.ENI.Card == 0 {
		return errors.Join(f.translate(), dhcp(c.ENI, i.NS).Add())
	}
	return nil
}

// plug replaces the wiring of an ENI. What stays the same is not touched.
func (f *Fabric) plug(id string, now nl.Wiring) error {
	was := f.plugged[id]
	without := func(w, other nl.Wiring) nl.Wiring {
		return slices.DeleteFunc(slices.Clone(w), func(s nl.Step) bool { return slices.Contains(other, s) })
	}
	err := without(was, now).Del()
	if now == nil {
		delete(f.plugged, id)
		return err
	}
	f.plugged[id] = now
	return errors.Join(err, without(now, was).Add())
}

// wiring is an attached ENI: its link, who it may be, and the ways to it.
func (f *Fabric) wiring(e ec2sim.ENI, i *Instance) nl.Wiring {
	dev, network := linkName(e), f.networks[e.VPC]
	var w nl.Wiring
	add := func(o nl.Object) { w = append(w, nl.Step{NS: f.vpc.NS, Object: o}) }
	add(nl.Veth{Name: dev, Peer: deviceName(e), PeerMAC: e.MAC, PeerNS: i.NS, MTU: jumbo})
	add(nl.Sysctl{Key: "net/ipv4/neigh/" + dev + "/proxy_delay", Value: "0"}) // arp(7): else it answers within 0.8 s
	if e.PublicIP.IsValid() {
		add(nl.Rule{Pref: prefInternet, From: prefix(e.Addrs[0]), IIF: dev, Table: network.internet})
	}
	if !e.SourceDestCheck {
		add(nl.Rule{Pref: prefAny, IIF: dev, Table: network.table})
	}
	add(nl.Rule{Pref: prefSpoofed, IIF: dev, Table: tableSpoofed})
	for _, p := range prefixes(e) {
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			add(nl.Neigh{Addr: a, MAC: e.MAC, Dev: dev})
		}
		for _, table := range network.tables() {
			add(nl.Route{Dst: p, Dev: dev, Table: table})
		}
		add(nl.Rule{Pref: prefOwn, From: p, IIF: dev, Table: network.table})
	}
	return w
}

// prefixes are the addresses of an ENI and the prefixes delegated to it.
func prefixes(e ec2sim.ENI) []netip.Prefix {
	var ps []netip.Prefix
	for _, a := range e.Addrs {
		ps = append(ps, prefix(a))
	}
	return append(ps, e.Prefixes...)
}

// linkName is the name of the fabric's end of an ENI, as much of its ID as fits.
func linkName(e ec2sim.ENI) string { return "eni-" + e.ID[max(0, len(e.ID)-8):] }

// deviceName is the name of the instance's end.
func deviceName(e ec2sim.ENI) string {
	if e.Card == 0 {
		return fmt.Sprintf("eth%d", e.Index)
	}
	return fmt.Sprintf("eth%dc%d", e.Index, e.Card)
}

// dhcp is what the DHCP server of a VPC gives a boot ENI: the primary address and a default route by the router, which
// is the address after the subnet's (VPC user guide: "Subnet CIDR blocks").
func dhcp(e ec2sim.ENI, n *nl.NS) nl.Wiring {
	const protoDHCP = 16 // rt_protos of iproute2
	primary, dev := e.Addrs[0], deviceName(e)
	return nl.Wiring{
		{NS: n, Object: nl.Addr{Prefix: netip.PrefixFrom(primary, e.CIDR.Bits()), Dev: dev}},
		{NS: n, Object: nl.Route{Dst: everything, Via: e.CIDR.Addr().Next(), Dev: dev, Src: primary, Protocol: protoDHCP}},
	}
}
