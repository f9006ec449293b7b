// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// These are the addresses of the only host in the internet (RFC 5737, TEST-NET-3; RFC 9637).
var (
	InternetAddr  = netip.MustParseAddr("203.0.113.1")
	InternetAddr6 = netip.MustParseAddr("3fff::1")
)

var (
	// These are the addresses of the link between the fabric and the internet gateway (RFC 5737, TEST-NET-1; RFC 9637).
	routerAddr   = netip.MustParsePrefix("192.0.2.1/30")
	gatewayAddr  = netip.MustParsePrefix("192.0.2.2/30")
	routerAddr6  = netip.MustParsePrefix("3fff:0:1::1/64")
	gatewayAddr6 = netip.MustParsePrefix("3fff:0:1::2/64")

	uplinkAddr  = netip.MustParsePrefix("203.0.113.254/24")
	uplinkAddr6 = netip.MustParsePrefix("3fff::254/64")

	// A router needs link-local addresses for neighbour solicitations.
	routerLocal  = netip.MustParsePrefix("fe80::1/64")
	gatewayLocal = netip.MustParsePrefix("fe80::2/64")
	publicIPs    = netip.MustParsePrefix("198.18.0.0/15") // the range of ec2sim's public addresses
)

// NATAddr is the public address of the NAT gateway. It is the last address in the range of ec2sim's public addresses.
var NATAddr = netip.MustParseAddr("198.19.255.255")

// A mapping is the primary address of an ENI and the ENI's public address.
type mapping struct{ private, public netip.Addr }

// AddNATGateway adds a NAT gateway to a subnet that has no ENIs yet. All ENIs of the subnet then reach the internet by
// IPv4 (VPC user guide: "NAT gateways"). In other subnets, only boot ENIs with a public address reach the internet by
// IPv4.
func (f *Fabric) AddNATGateway(subnet netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.natSubnets = append(f.natSubnets, subnet)
	return f.updateNAT()
}

// OpenPorts lets hosts in the internet call these TCP and UDP ports by IPv4, at all public addresses. In EC2, a
// security group does this (VPC user guide: "Security groups"). By default, no port is open.
func (f *Fabric) OpenPorts(ports ...uint16) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.openPorts = append(f.openPorts, ports...)
	return f.updateNAT()
}

// hasNAT reports whether the subnet of an ENI has a NAT gateway.
func (f *Fabric) hasNAT(e ec2sim.ENI) bool { return slices.Contains(f.natSubnets, e.CIDR) }

// internetWiring returns the wiring of the internet gateway and the internet.
func (f *Fabric) internetWiring() nl.Wiring {
	vpc, igw, internet := f.vpc.NS, f.igw.NS, f.Internet.NS
	return slices.Concat(routerSysctls(igw), nl.Wiring{
		{NS: vpc, Object: nl.Veth{Name: "igw", Peer: "vpc", PeerNS: igw, MTU: internetMTU}},
		{NS: vpc, Object: nl.Addr{Prefix: routerAddr, Dev: "igw"}},
		{NS: igw, Object: nl.Addr{Prefix: gatewayAddr, Dev: "vpc"}},
		{NS: igw, Object: nl.Veth{Name: "internet", Peer: "eth0", PeerNS: internet, MTU: internetMTU}},
		{NS: igw, Object: nl.Addr{Prefix: uplinkAddr, Dev: "internet"}},
		{NS: igw, Object: nl.Route{Dst: allIPv4, Via: InternetAddr, Dev: "internet"}},
		{NS: igw, Object: nl.Route{Dst: publicIPs, Type: "blackhole"}}, // unused public addresses
		{NS: internet, Object: nl.Addr{Prefix: netip.PrefixFrom(InternetAddr, uplinkAddr.Bits()), Dev: "eth0"}},
		{NS: internet, Object: nl.Route{Dst: publicIPs, Via: uplinkAddr.Addr(), Dev: "eth0"}},
	}, nl.Wiring{ // the gateway does not translate IPv6 addresses (VPC user guide: "Internet gateways")
		{NS: vpc, Object: nl.Addr{Prefix: routerLocal, Dev: "igw", NoDAD: true}},
		{NS: vpc, Object: nl.Addr{Prefix: routerAddr6, Dev: "igw", NoDAD: true}},
		{NS: igw, Object: nl.Addr{Prefix: gatewayLocal, Dev: "vpc", NoDAD: true}},
		{NS: igw, Object: nl.Addr{Prefix: gatewayAddr6, Dev: "vpc", NoDAD: true}},
		{NS: igw, Object: nl.Addr{Prefix: gatewayLocal, Dev: "internet", NoDAD: true}},
		{NS: igw, Object: nl.Addr{Prefix: uplinkAddr6, Dev: "internet", NoDAD: true}},
		{NS: internet, Object: nl.Addr{Prefix: netip.PrefixFrom(InternetAddr6, uplinkAddr6.Bits()), Dev: "eth0",
			NoDAD: true}},
		{NS: internet, Object: nl.Route{Dst: allIPv6, Via: uplinkAddr6.Addr(), Dev: "eth0"}},
	})
}

// updateNAT updates the rules with which the internet gateway translates addresses (VPC user guide: "Internet
// gateways": "a one-to-one NAT"). The rules also simulate the NAT gateways.
func (f *Fabric) updateNAT() error {
	in := nl.Chain{Name: "in", Type: "nat", Hook: "prerouting", Priority: -100}
	out := nl.Chain{Name: "out", Type: "nat", Hook: "postrouting", Priority: 100}
	var w nl.Wiring
	add := func(private netip.Prefix, public netip.Addr) {
		w = append(w, nl.Step{NS: f.igw.NS, Object: nl.Route{Dst: private, Via: routerAddr.Addr(), Dev: "vpc"}})
		out.Rules = append(out.Rules, nl.NFRule{nl.OIFName("internet"), nl.SAddr(private), nl.SNAT(public)})
	}
	for _, id := range slices.Sorted(maps.Keys(f.publicAddrs)) {
		m := f.publicAddrs[id]
		add(hostPrefix(m.private), m.public)
		for _, port := range f.openPorts {
			for _, proto := range []string{"tcp", "udp"} {
				in.Rules = append(in.Rules, nl.NFRule{nl.DAddr(hostPrefix(m.public)), nl.DPort(proto, port, port),
					nl.DNAT(netip.AddrPortFrom(m.private, port))})
			}
		}
	}
	for _, subnet := range f.natSubnets {
		add(subnet, NATAddr)
	}
	t := nl.Table{Family: "ip", Name: "igw", Chains: []nl.Chain{in, out}}
	if len(w) == 0 {
		return nl.Wiring{{NS: f.igw.NS, Object: t}}.Del()
	}
	return append(w, nl.Step{NS: f.igw.NS, Object: t}).Add()
}
