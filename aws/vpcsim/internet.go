// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// InternetAddr is the address of the internet's host (RFC 5737, TEST-NET-3).
var InternetAddr = netip.MustParseAddr("203.0.113.1")

var (
	// between the fabric and the internet gateway (RFC 5737, TEST-NET-1)
	routerAddr  = netip.MustParsePrefix("192.0.2.1/30")
	gatewayAddr = netip.MustParsePrefix("192.0.2.2/30")

	uplink    = netip.MustParsePrefix("203.0.113.254/24")
	publicIPs = netip.MustParsePrefix("198.18.0.0/15") // those that ec2sim gives
)

// A mapping is a public address and the primary address it belongs to.
type mapping struct{ private, public netip.Addr }

// outside is the internet gateway and the internet.
func (f *Fabric) outside() nl.Wiring {
	vpc, igw, internet := f.vpc.NS, f.igw.NS, f.Internet.NS
	return append(router(igw), nl.Wiring{
		{NS: vpc, Object: nl.Veth{Name: "igw", Peer: "vpc", PeerNS: igw, MTU: ethernet}},
		{NS: vpc, Object: nl.Addr{Prefix: routerAddr, Dev: "igw"}},
		{NS: igw, Object: nl.Addr{Prefix: gatewayAddr, Dev: "vpc"}},
		{NS: igw, Object: nl.Veth{Name: "internet", Peer: "eth0", PeerNS: internet, MTU: ethernet}},
		{NS: igw, Object: nl.Addr{Prefix: uplink, Dev: "internet"}},
		{NS: igw, Object: nl.Route{Dst: everything, Via: InternetAddr, Dev: "internet"}},
		{NS: igw, Object: nl.Route{Dst: publicIPs, Type: "blackhole"}}, // those that nobody has
		{NS: internet, Object: nl.Addr{Prefix: netip.PrefixFrom(InternetAddr, uplink.Bits()), Dev: "eth0"}},
		{NS: internet, Object: nl.Route{Dst: publicIPs, Via: uplink.Addr(), Dev: "eth0"}},
	}...)
}

// translate makes the gateway translate between private and public addresses as they are mapped now (VPC user guide:
// "Internet gateways": "a one-to-one NAT").
func (f *Fabric) translate() error {
	out := nl.Chain{Name: "out", Type: "nat", Hook: "postrouting", Priority: 100}
	var w nl.Wiring
	for _, id := range slices.Sorted(maps.Keys(f.mapped)) {
		m := f.mapped[id]
		w = append(w, nl.Step{NS: f.igw.NS, Object: nl.Route{Dst: prefix(m.private), Via: routerAddr.Addr(), Dev: "vpc"}})
		out.Rules = append(out.Rules, nl.NFRule{nl.OIFName("internet"), nl.SAddr(prefix(m.private)), nl.SNAT(m.public)})
	}
	t := nl.Table{Family: "ip", Name: "igw", Chains: []nl.Chain{out}}
	if len(w) == 0 {
		return nl.Wiring{{NS: f.igw.NS, Object: t}}.Del()
	}
	return append(w, nl.Step{NS: f.igw.NS, Object: t}).Add()
}
