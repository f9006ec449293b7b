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
// If a pod's request goes through the node, the answer with IMDSv2's session token does not reach the pod. The reason
// is the hop limit of this answer. The hop limit is 1 if neither the AMI nor an operator has raised the limit. Other
// answers, such as those of IMDSv1, have no such limit. If the request goes through the pod's ENI, there is no hop
// between the pod and the service.
var metadataAddrs = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// blockedAddrs returns the addresses of the metadata service that the pod must not reach. If blockInstanceMetadata is
// not set, and hostCidrs has an address as a /32 or a /128, blockedAddrs leaves out this address. The reason is that
// packets to this address go to a proxy on the node.
func blockedAddrs(r *request, p pair) (addrs []netip.Addr) {
	for _, a := range metadataAddrs {
		f := nl.FamilyOf(a)
		// packets to this address would leave through the ENI
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
// address, so a program gets an error at once. Sockets that are bound to a link ignore the route, so a filter at each
// of the pod's links drops their packets. A filter needs BPF, which a kernel may lack. So if a pod's loop needs no BPF,
// the pod gets the filter only if blockInstanceMetadata is set. The pod always gets the route.
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

// prohibitRoute returns the route that refuses an address of the metadata service.
func prohibitRoute(a netip.Addr) nl.Route {
	return nl.Route{Dst: nl.HostPrefix(a), Type: "prohibit", Protocol: nl.RouteProtocol}
}

// needsFilters reports whether BPF filters must block the metadata service for a pod with this service loop, besides
// the routes that refuse this service.
func needsFilters(r *request, loop string) bool {
	return r.Config.BlockInstanceMetadata != nil || loop != masquerade
}
