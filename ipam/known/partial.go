// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// For some seconds, metadata does not show all of a new ENI.

// isPartial reports whether metadata does not show all of an ENI yet. The keys of a new ENI appear one after another,
// within half a minute (amazon-ec2-net-utils, lib/lib.sh). So partial compares metadata with before, the registry's
// earlier record of the ENI, and with EC2's description. In a subnet with IPv4, each ENI has an IPv4 address. A subnet
// keeps its CIDR of a family while an ENI has addresses of this family.
func isPartial(e aws.ENI, before registry.ENI, described aws.ENI) bool {
	had := func(is func(netip.Addr) bool, described int) bool { return before.Assigned(is) > 0 || described > 0 }
	v4 := had(netip.Addr.Is4, len(described.Addrs))
	v6 := had(netip.Addr.Is6, len(described.IPv6Addrs)+len(described.IPv6Prefixes)) ||
		len(e.IPv6Addrs)+len(e.IPv6Prefixes) > 0
	noIPv4 := len(e.Addrs) == 0 && !hasNoAddrs(e)
	return e.Subnet == "" || e.VPC == "" || e.CIDR.IsValid() && noIPv4 || !e.CIDR.IsValid() &&
		(v4 || len(e.Addrs) > 0) || !e.IPv6CIDR.IsValid() && v6
}

// shareVPCCIDRs gives all ENIs of a VPC the longest list of the VPC's CIDRs that metadata shows for one of them. For a new
// ENI, metadata may not show all CIDRs yet.
func shareVPCCIDRs(enis []aws.ENI) {
	for i := range enis {
		e := &enis[i]
		for _, other := range enis {
			if other.VPC == e.VPC && len(other.VPCCIDRs) > len(e.VPCCIDRs) {
				e.VPCCIDRs = other.VPCCIDRs
			}
			if other.VPC == e.VPC && len(other.VPCIPv6CIDRs) > len(e.VPCIPv6CIDRs) {
				e.VPCIPv6CIDRs = other.VPCIPv6CIDRs
			}
		}
	}
}

// hasNoAddrs reports whether an ENI has no addresses at all. ENIs for EFA alone have none. For a while, metadata may also
// show a new ENI without its addresses.
func hasNoAddrs(e aws.ENI) bool {
	return len(e.Addrs)+len(e.Prefixes)+len(e.IPv6Addrs)+len(e.IPv6Prefixes) == 0
}
