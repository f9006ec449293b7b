// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// The MTUs of a VPC and of the internet (EC2 user guide: "Network MTU for your EC2 instance").
const (
	vpcMTU      = 9001
	internetMTU = 1500
)

// The preferences of an ENI's routing rules. The kernel evaluates the rule with the lowest preference first.
const (
	prefInternet = 100 // packets to the internet, if the source has a public address or a NAT gateway
	prefOwn      = 200 // packets whose source is an address of the ENI
	prefAny      = 250 // packets with any source, if EC2 does not check the sources of this ENI
	prefSpoofed  = 300 // all other packets
)

// applyReported updates the fabric after a change in EC2. It stores an error for [Fabric.Err].
func (f *Fabric) applyReported(c ec2sim.Change) {
	adopted, err := f.adoptLaunched(c)
	err = errors.Join(err, f.applyLocked(c))
	if err == nil && adopted != nil {
		err = f.startAdopted(adopted)
	}
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.failed = errors.Join(f.failed, fmt.Errorf("%s %s: %w", c.ENI.ID, c.Kind, err))
	}
}

// applyLocked calls apply with the lock held, unless the fabric is closed.
func (f *Fabric) applyLocked(c ec2sim.Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.run == nil {
		return nil
	}
	return f.apply(c)
}

func (f *Fabric) apply(c ec2sim.Change) error {
	i := f.instances[c.Instance]
	if i == nil && f.booting != nil && c.Kind == ec2sim.Attached {
		i, f.booting = f.booting, nil
		f.instances[c.Instance] = i
	}
	if i == nil {
		return nil // the ENI of an instance without a namespace
	}
	if c.Kind == ec2sim.Detached {
		delete(f.publicAddrs, c.ENI.ID)
		return errors.Join(f.unplugENI(c.ENI.ID), f.updateNAT())
	}
	if err := f.plugENI(c.ENI, i); err != nil {
		return err
	}
	if c.ENI.PublicIP.IsValid() {
		f.publicAddrs[c.ENI.ID] = mapping{c.ENI.Addrs[0], c.ENI.PublicIP}
	}
	if c.Kind == ec2sim.Attached && c.ENI.Boot {
		return errors.Join(f.updateNAT(), dhcpWiring(c.ENI, i.NS).Add())
	}
	return nil
}

// A pluggedENI is an ENI that is attached to an instance.
type pluggedENI struct {
	wiring   nl.Wiring // the first step is the ENI's link
	instance *Instance
	// The instance's end of the link, as the fabric has seen it last. A program may have moved this end to a pod's
	// namespace.
	lastSeen nl.Link
	lost     bool // the fabric could not restore the link; Err has the error
}

// plugENI replaces the wiring of an ENI. Objects that are in the old wiring and in the new wiring stay unchanged.
func (f *Fabric) plugENI(e ec2sim.ENI, i *Instance) error {
	p := f.plugged[e.ID]
	was, now := p.wiring, f.eniWiring(e, i)
	f.plugged[e.ID] = pluggedENI{wiring: now, instance: i, lastSeen: p.lastSeen}
	err := stepsNotIn(was, now).Del()
	if failed := stepsNotIn(now, was).Add(); failed != nil && (len(was) == 0 || !f.isLinkMissing(linkName(e))) {
		return errors.Join(err, failed)
	}
	return errors.Join(err, f.checkLink(e.ID)) // if the link is gone, checkLink restores it and its wiring
}

// unplugENI removes the wiring of an ENI. The ENI's link vanishes even if it is in the namespace of a pod.
func (f *Fabric) unplugENI(id string) error {
	was := f.plugged[id].wiring
	delete(f.plugged, id)
	return was.Del()
}

func stepsNotIn(w, other nl.Wiring) nl.Wiring {
	return slices.DeleteFunc(slices.Clone(w), func(s nl.Step) bool { return slices.Contains(other, s) })
}

// routerMAC and router6 are the addresses that the VPC's router has on the link of each ENI. The IPv6 address is the
// same in every subnet (VPC user guide, "Subnet route tables": fe80:ec2::1). The kernel answers neighbour solicitations
// for this address.
const routerMAC = "02:00:00:00:0e:c2"

var router6 = netip.MustParsePrefix("fe80:ec2::1/64")

// eniWiring returns the objects of an attached ENI: its link, rules for its allowed source addresses, and routes to its
// addresses.
func (f *Fabric) eniWiring(e ec2sim.ENI, i *Instance) nl.Wiring {
	dev, network := linkName(e), f.networks[e.VPC]
	var w nl.Wiring
	add := func(objects ...nl.Object) {
		for _, o := range objects {
			w = append(w, nl.Step{NS: f.vpc.NS, Object: o})
		}
	}
	add(nl.Veth{Name: dev, MAC: routerMAC, Peer: deviceName(e), PeerMAC: e.MAC, PeerNS: i.NS, MTU: vpcMTU},
		// arp(7): by default, the kernel waits up to 0.8 s before it answers
		nl.Sysctl{Key: "net/ipv4/neigh/" + dev + "/proxy_delay", Value: "0"},
		nl.Addr{Prefix: router6, Dev: dev, NoDAD: true})
	add(farEndNeighbours(dev, e.MAC)...)
	if e.PublicIP.IsValid() && !f.hasNAT(e) {
		add(nl.Rule{Pref: prefInternet, From: hostPrefix(e.Addrs[0]), IIF: dev, Table: network.internet})
	}
	for _, family := range nl.Families {
		if !e.SourceDestCheck {
			add(nl.Rule{Pref: prefAny, Family: family, IIF: dev, Table: network.table})
		}
		add(nl.Rule{Pref: prefSpoofed, Family: family, IIF: dev, Table: tableSpoofed})
	}
	for _, p := range eniPrefixes(e) {
		for _, table := range network.tables() {
			add(farEndRoute(dev, p, table))
		}
		add(nl.Rule{Pref: prefOwn, From: p, IIF: dev, Table: network.table})
		if p.Addr().Is4() && f.hasNAT(e) {
			add(nl.Rule{Pref: prefInternet, From: p, IIF: dev, Table: network.internet})
		}
	}
	return w
}

// eniPrefixes returns the addresses of an ENI and the prefixes delegated to it.
func eniPrefixes(e ec2sim.ENI) []netip.Prefix {
	var ps []netip.Prefix
	for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
		ps = append(ps, hostPrefix(a))
	}
	return slices.Concat(ps, e.Prefixes, e.IPv6Prefixes)
}

// linkName returns the name of the fabric's end of an ENI's link. It has the last eight characters of the ENI's ID.
func linkName(e ec2sim.ENI) string { return "eni-" + e.ID[max(0, len(e.ID)-8):] }

// deviceName returns the name of the instance's end of an ENI's link.
func deviceName(e ec2sim.ENI) string {
	if e.Card == 0 {
		return fmt.Sprintf("eth%d", e.Index)
	}
	return fmt.Sprintf("eth%dc%d", e.Index, e.Card)
}

// The protocols of routes (rt_protos of iproute2).
const (
	protoRA   = 9
	protoDHCP = 16
)

// dhcpWiring returns the addresses and routes that a boot ENI gets for each of its families. For IPv4, the DHCP server
// of a VPC gives the ENI its primary address, and a default route through the VPC's router. The router has the first
// address after the subnet's network address (VPC user guide: "Subnet CIDR blocks"). For IPv6, the DHCP server gives
// the ENI only its address. The routes for IPv6 are those that systemd-networkd adds for the router's advertisements.
func dhcpWiring(e ec2sim.ENI, n *nl.NS) nl.Wiring {
	var w nl.Wiring
	add := func(o nl.Object) { w = append(w, nl.Step{NS: n, Object: o}) }
	dev := deviceName(e)
	if len(e.Addrs) > 0 {
		primary := e.Addrs[0]
		add(nl.Addr{Prefix: netip.PrefixFrom(primary, e.CIDR.Bits()), Dev: dev})
		add(nl.Route{Dst: allIPv4, Via: e.CIDR.Addr().Next(), Dev: dev, Src: primary, Protocol: protoDHCP})
	}
	if len(e.IPv6Addrs) > 0 {
		add(nl.Addr{Prefix: hostPrefix(e.IPv6Addrs[0]), Dev: dev, NoDAD: true})
		add(nl.Route{Dst: e.IPv6CIDR, Dev: dev, Protocol: protoRA})
		add(nl.Route{Dst: allIPv6, Via: router6.Addr(), Dev: dev, Protocol: protoRA})
	}
	return w
}
