// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// result is the plugin's answer, of the shape that the original gave: the ENI's
// link on the host as the only interface, the address with its subnet's mask, a
// route by the subnet's gateway to each CIDR block of the VPC, then of its peers, then
// of routeToCidrs, and the VPC's DNS server.
func result(a Allocation, link string, p Policy) *types100.Result {
	gateway := a.ENI.CIDR.Masked().Addr().Next()
	r := &types100.Result{
		Interfaces: []*types100.Interface{{Name: link}},
		IPs: []*types100.IPConfig{{
			Interface: new(0),
			Address:   ipNet(netip.PrefixFrom(a.Addr, a.ENI.CIDR.Bits())),
			Gateway:   gateway.AsSlice(),
		}},
	}
	for _, dst := range destinations(a, p) {
		r.Routes = append(r.Routes, &types.Route{Dst: ipNet(dst), GW: gateway.AsSlice()})
	}
	if len(a.VPC.CIDRs) > 0 {
		// "The DNS server at VPC CIDR plus two": VPC user guide, "Amazon DNS server".
		r.DNS.Nameservers = []string{a.VPC.CIDRs[0].Masked().Addr().Next().Next().String()}
	}
	return r
}

// destinations are the blocks that pods reach by the ENI, each once.
func destinations(a Allocation, p Policy) []netip.Prefix {
	all := slices.Clone(a.VPC.CIDRs)
	if p.Peers {
		all = append(all, a.VPC.Peers...)
	}
	var once []netip.Prefix
	for _, dst := range append(all, p.Routes...) {
		if !slices.Contains(once, dst) {
			once = append(once, dst)
		}
	}
	return once
}

// ipNet is the CNI library's form of a prefix with its host bits.
func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
