// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// metadataAddrs are the addresses of the instance metadata service (EC2 user guide, "Access instance metadata"). A
// program that reaches the service gets the credentials of the node's role.
//
// The answer with IMDSv2's session token has the hop limit 1, unless the AMI or an operator has raised this limit. With
// the limit 1, the answer does not reach a pod through the node. Other answers, such as those of IMDSv1, have no such
// limit. An answer through the pod's ENI needs no hop, so the limit does not stop it.
var metadataAddrs = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// blockedAddrs returns the addresses of the metadata service that the pod must not reach. Without
// blockInstanceMetadata, an address is not blocked if hostCidrs contains it as a /32 or /128: packets to this address
// go to a proxy on the node.
func blockedAddrs(r *request, p pair) (addrs []netip.Addr) {
	for _, a := range metadataAddrs {
		f := nl.FamilyOf(a)
		// block the address if packets to it would leave through the ENI
		block := (r.Config.DefaultRoute == byVPC || r.hasDefaultRoute(f)) &&
			!slices.Contains(r.Config.hostCIDRs, nl.HostPrefix(a))
		if r.Config.BlockInstanceMetadata != nil {
			block = *r.Config.BlockInstanceMetadata
		}
		if block && p.hasFamily(f) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// metadataBlock returns the objects that block the pod's packets to the metadata service. A route refuses the service's
// address, so programs get an error at once. Packets of a socket that is bound to a link ignore this route, so a filter
// at each of the pod's links drops them. Filters need BPF. So a pod whose loop needs no BPF gets filters only if
// blockInstanceMetadata is set.
func metadataBlock(r *request, p pair) (objects []nl.Object) {
	addrs := blockedAddrs(r, p)
	if len(addrs) == 0 {
		return nil
	}
	for _, a := range addrs {
		objects = append(objects, prohibitRoute(a))
	}
	if needsFilters(r, p.loop) {
		objects = append(objects, nl.Forbid{Devs: r.podLinks(), Addrs: addrs})
	}
	return objects
}

func prohibitRoute(a netip.Addr) nl.Route {
	return nl.Route{Dst: nl.HostPrefix(a), Type: "prohibit", Protocol: nl.RouteProtocol}
}

// needsFilters reports whether a pod with this service loop needs BPF filters that block the metadata service, besides
// the routes.
func needsFilters(r *request, loop string) bool {
	return r.Config.BlockInstanceMetadata != nil || loop != masquerade
}
