// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// isPartial reports whether metadata's answer e lacks keys of an ENI. The keys of a new ENI appear one after another,
// within half a minute (amazon-ec2-net-utils, lib/lib.sh). The argument earlier is the registry's entry of the ENI, and
// described is EC2's description. Two rules show a missing key. In a subnet with IPv4, each ENI has an IPv4 address. If
// an ENI has addresses of a family, its subnet has a CIDR of this family.
func isPartial(e aws.ENI, earlier registry.ENI, described aws.ENI) bool {
	had := func(is func(netip.Addr) bool, described int) bool { return earlier.Assigned(is) > 0 || described > 0 }
	v4 := had(netip.Addr.Is4, len(described.Addrs))
	v6 := had(netip.Addr.Is6, len(described.IPv6Addrs)+len(described.IPv6Prefixes)) ||
		len(e.IPv6Addrs)+len(e.IPv6Prefixes) > 0
	noIPv4 := len(e.Addrs) == 0 && !hasNoAddrs(e)
	return e.Subnet == "" || e.VPC == "" || e.CIDR.IsValid() && noIPv4 || !e.CIDR.IsValid() &&
		(v4 || len(e.Addrs) > 0) || !e.IPv6CIDR.IsValid() && v6
}

// shareVPCCIDRs gives each ENI the longest list of VPC CIDRs that metadata shows for an ENI of the same VPC. Metadata
// perhaps does not show all CIDRs of a new ENI yet.
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

// hasNoAddrs reports whether e has neither addresses nor prefixes. An ENI that is only for EFA has neither. In
// metadata, any new ENI has neither for a while.
func hasNoAddrs(e aws.ENI) bool {
	return len(e.Addrs)+len(e.Prefixes)+len(e.IPv6Addrs)+len(e.IPv6Prefixes) == 0
}
