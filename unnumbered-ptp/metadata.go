// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// metadata are the addresses of the instance metadata service (EC2 user guide, "Access
// instance metadata"). A program that reaches it has the credentials of the node's role.
//
// By the node, the answers to a pod end at the service's hop limit of 1, unless an operator has raised that. By the ENI
// there is no hop in between.
var metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// blocked are the addresses of the metadata service that the pod must not reach. Where the configuration does not ask
// for the block, hostCidrs may lead to one of them: to a proxy on the node.
func blocked(r *request, p pair) (addrs []netip.Addr) {
	for _, a := range metadata {
		f := nl.FamilyOf(a)
		// it would leave by the ENI
		block := (r.Config.DefaultRoute == byVPC || r.routed(f)) && !slices.Contains(r.Config.hostCIDRs, single(a))
		if r.Config.BlockInstanceMetadata != nil {
			block = *r.Config.BlockInstanceMetadata
		}
		if block && p.has(f) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// metadataBlock keeps the pod from the metadata service by a route, so that a program gets an error at once. A filter
// at both links stops sockets that are bound to a link, because these ignore the route. The kernel may have no BPF.
// So a pod whose loop needs no BPF has the route alone, unless blockInstanceMetadata is set.
func metadataBlock(r *request, p pair) (objects []nl.Object) {
	addrs := blocked(r, p)
	if len(addrs) == 0 {
		return nil
	}
	for _, a := range addrs {
		objects = append(objects, prohibition(a))
	}
	if filters(r, p.loop) {
		objects = append(objects, nl.Forbid{Devs: r.podLinks(), Addrs: addrs})
	}
	return objects
}

// prohibition is the route of metadataBlock.
func prohibition(a netip.Addr) nl.Route {
	return nl.Route{Dst: single(a), Type: "prohibit", Protocol: nl.RouteProtocol}
}

// filters reports whether a pod with such a loop has filters besides the routes.
func filters(r *request, loop string) bool {
	return r.Config.BlockInstanceMetadata != nil || loop != masquerade
}
