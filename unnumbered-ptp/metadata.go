// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// metadata are the addresses of the instance metadata service (EC2 user guide, "Access
// instance metadata"). Whoever reaches it has the credentials of the node's role.
//
// By the node, a pod's answers end at the hop limit of 1 that the service has unless
// somebody raised it. By the ENI there is no hop between.
var metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// blocked are the addresses of the metadata service that the pod is to be kept from.
func blocked(r *plugin.Request[Config], p pair) (addrs []netip.Addr) {
	for _, a := range metadata {
		block := slices.Contains(byENI(r, p), everywhere(a.Is6()))
		if r.Config.BlockInstanceMetadata != nil {
			block = *r.Config.BlockInstanceMetadata
		}
		if block && p.has(a.Is6()) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// metadataBlock keeps the pod from the metadata service: by a route, so that who asks
// is told at once; and by a filter at both links, because a socket that is bound to one
// of them does not heed the route. Where nobody has asked for it, a pod whose loop needs
// no BPF, maybe because there is none, has the route alone.
func metadataBlock(r *plugin.Request[Config], p pair) (objects []nl.Object) {
	addrs := blocked(r, p)
	if len(addrs) == 0 {
		return nil
	}
	for _, a := range addrs {
		objects = append(objects, nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Type: "prohibit", Protocol: nl.RouteProtocol})
	}
	if r.Config.BlockInstanceMetadata != nil || p.loop != masquerade {
		objects = append(objects, nl.Forbid{Devs: links(r), Addrs: addrs})
	}
	return objects
}

// links are the pod's.
func links(r *plugin.Request[Config]) []string {
	return []string{r.IfName, r.Config.ContainerInterface}
}
