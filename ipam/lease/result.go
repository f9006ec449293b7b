// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// router6 is the IPv6 address at which the VPC router answers in every subnet. The pods of amazon-vpc-cni-k8s have the
// same gateway.
var router6 = netip.MustParseAddr("fe80:ec2::1")

// everywhere6 is the destination of the IPv6 default route. This route leads through the ENI, because the pod's IPv6
// address is public. The IPv4 default route may lead to the node, which masquerades the pod's packets.
var everywhere6 = netip.PrefixFrom(netip.IPv6Unspecified(), 0)

// Result returns the plugin's result, in the form of the original plugin. The only interface is the ENI's link on the
// node. The result has the link's MAC address only if the pod gets the whole ENI. Each address has the mask of its
// subnet. The routes through the subnet's gateway have this order: the VPC's CIDR blocks, the blocks of the VPC's
// peers, routeToCidrs, and the IPv6 default route. The DNS server is the one of the VPC.
func (a Allocation) Result(link string, p Policy) *types100.Result {
	r := &types100.Result{Interfaces: []*types100.Interface{{Name: link}}}
	if p.Choice.Exclusive {
		r.Interfaces[0].Mac = a.ENI.MAC
	}
	for _, addr := range a.Addrs {
		r.IPs = append(r.IPs, &types100.IPConfig{
			Interface: new(0),
			Address:   ipNet(netip.PrefixFrom(addr, a.subnetOf(addr).Bits())),
			Gateway:   a.gatewayFor(addr).AsSlice(),
		})
	}
	for _, dst := range destinations(a, p) {
		r.Routes = append(r.Routes, &types.Route{Dst: ipNet(dst), GW: a.gatewayFor(dst.Addr()).AsSlice()})
	}
	if len(a.VPC.CIDRs) > 0 {
		// "The DNS server at VPC CIDR plus two": VPC user guide, "Amazon DNS server".
		r.DNS.Nameservers = []string{a.VPC.CIDRs[0].Masked().Addr().Next().Next().String()}
	}
	return r
}

// Routed returns the plugin's result for a routed pod. The pod's addresses, with the mask of a single address (/32 or
// /128), are at the pod's interface, which unnumbered-ptp makes. The routes are for the node, which forwards the pod's
// packets. The result also has the ENI's primary address, at the ENI's link. The node needs this address to ask for the
// MAC address of the VPC router. No program can unassign a primary address.
func (a Allocation) Routed(link string, p Policy, ifName, netNS string) *types100.Result {
	r := a.Result(link, p)
	r.Interfaces = append(r.Interfaces, &types100.Interface{Name: ifName, Sandbox: netNS})
	for _, ip := range r.IPs {
		ip.Interface = new(1)
		_, bits := ip.Address.Mask.Size()
		ip.Address.Mask = net.CIDRMask(bits, bits)
	}
	AddPrimary(r, a.ENI)
	return r
}

// AddPrimary adds the primary address of the ENI to the result of a routed pod, if the ENI has IPv4.
func AddPrimary(r *types100.Result, e registry.ENI) {
	if own := e.Primary(); own.Is4() {
		r.IPs = append(r.IPs, &types100.IPConfig{Interface: new(0),
			Address: ipNet(netip.PrefixFrom(own, e.CIDR.Bits()))})
	}
}

// Recall computes, from the registry and the configuration, the result of the ADD that has made the lease l. The
// argument addrs has the addresses of the lease's owner. Recall does not know the requests in the pod's annotations. A
// pod keeps its data path even if the configuration changes, so the function isRouted reports whether the pod is
// routed. The argument configured of isRouted is true if the configuration now wants a routed pod.
func Recall(
	s *registry.State, l registry.Lease, addrs []netip.Addr, c *Config, isRouted func(configured bool) bool,
) (*types100.Result, error) {
	policy, err := c.Choose(plugin.Pod{Namespace: l.PodNamespace, Name: l.PodName})
	if err != nil {
		return nil, err
	}
	e := s.ENIs[l.ENI]
	a := Allocation{Addrs: addrs, ID: l.ENI, ENI: e, VPC: s.VPCs[e.VPC]}
	if isRouted(policy.Routed) {
		return a.Routed(e.Link, policy, l.IfName, l.NetNS), nil
	}
	return a.Result(e.Link, policy), nil
}

// appendInterface adds a further interface to the pod's result r. The argument added is the result of the further
// interface. appendInterface copies no routes, because a pod uses a further interface only to answer packets that came
// in through it.
func appendInterface(r, added *types100.Result) {
	index := len(r.Interfaces)
	r.Interfaces = append(r.Interfaces, added.Interfaces...)
	for _, ip := range added.IPs {
		ip.Interface = new(index)
		r.IPs = append(r.IPs, ip)
	}
}

// subnetOf returns the CIDR of the ENI's subnet in the family of addr.
func (a Allocation) subnetOf(addr netip.Addr) netip.Prefix {
	if addr.Is6() {
		return a.ENI.CIDR6
	}
	return a.ENI.CIDR
}

// gatewayFor returns the address of the VPC router, in the family of addr. In IPv4, it is the first address after the
// subnet's network address (VPC user guide, "Subnet CIDR blocks").
func (a Allocation) gatewayFor(addr netip.Addr) netip.Addr {
	if addr.Is6() {
		return router6
	}
	return a.ENI.CIDR.Masked().Addr().Next()
}

// destinations returns the CIDR blocks to which the pod has routes through the ENI, once each, in the pod's families.
func destinations(a Allocation, p Policy) []netip.Prefix {
	all := slices.Concat(a.VPC.CIDRs, a.VPC.CIDRs6)
	if p.Peers {
		all = append(all, a.VPC.Peers...)
	}
	all = append(append(all, p.Routes...), everywhere6)
	var once []netip.Prefix
	for _, dst := range all {
		has := slices.ContainsFunc(a.Addrs, func(own netip.Addr) bool { return own.Is6() == dst.Addr().Is6() })
		if has && !slices.Contains(once, dst) {
			once = append(once, dst)
		}
	}
	return once
}

// ipNet converts a prefix to the type of the CNI library. It does not clear the prefix's host bits.
func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
