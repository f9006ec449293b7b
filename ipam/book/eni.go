// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// VPCOf returns the ID of the instance's VPC, which is the VPC of its boot ENI. If the registry does not have the boot
// ENI yet, VPCOf returns the VPC of another ENI.
func VPCOf(s *registry.State) (vpc string) {
	for _, e := range s.ENIs {
		if e.IsBoot() {
			return e.VPC
		}
		vpc = e.VPC
	}
	return vpc
}

// Record writes the attached ENI e to the state, without its addresses.
func Record(s *registry.State, e aws.ENI, managed bool) {
	known := s.ENIs[e.ID]
	known.Reattach()
	known.MAC, known.Index, known.Card, known.Managed, known.Read = e.MAC, e.Index, e.Card, managed, time.Now()
	known.Subnet, known.VPC = e.Subnet, e.VPC
	if e.CIDR.IsValid() || e.IPv6CIDR.IsValid() {
		known.CIDR, known.CIDR6 = e.CIDR, e.IPv6CIDR
	}
	s.ENIs[e.ID] = known
}

// Serve records which pool an ENI serves.
func Serve(s *registry.State, id, pool string) {
	s.Edit(id, func(e *registry.ENI) {
		e.Pool = pool
		e.Serve()
	})
}

// IsBoot reports whether an ENI is the boot ENI of this instance. The argument known is the registry's entry of the
// ENI. If metadata has named the ENI as the boot ENI, the entry says so. If metadata has not, the slot in EC2's
// description e decides.
func IsBoot(known registry.ENI, e aws.ENI) bool {
	known.Index, known.Card = e.Index, e.Card
	return known.IsBoot()
}

// Label completes known, the registry's entry of an ENI, from EC2's description e, and returns the entry. If a tag is
// missing, Label leaves the tag's field as it is, because a node without permission to create tags makes ENIs without
// tags.
func Label(known registry.ENI, e aws.ENI) registry.ENI {
	if e.Tags[TagPool] != "" {
		known.Pool = PoolOf(e)
	}
	known.Managed = known.Managed || e.Tags[TagManaged] == "true"
	if e.Tags[TagKeep] == "false" {
		known.Serve()
	}
	if Foreign(e) {
		known.Disown()
	}
	if e.ID != "" {
		known.Confirm()
	}
	boot := IsBoot(known, e)
	if e.ID != "" && !known.Managed && !boot {
		known.Groups, known.PoolUnknown = GroupsOf(e), PoolUnknown(e)
	}
	if e.ID != "" && !ForPods(e) && !boot {
		known.Tags = e.Tags
	}
	return known
}

// Leaving returns true if EC2 is detaching the ENI e, and if the registry lacks e. The argument known is false if the
// registry lacks e. Pods must not get addresses of such an ENI.
func Leaving(known bool, e aws.ENI) bool { return !known && e.AttachmentStatus == aws.Detaching }

// NodesOwn reports whether an address of an ENI belongs to the node itself. The node's own addresses are the first
// address of each family on the boot ENI. The argument e is what metadata or EC2 shows of the ENI.
func NodesOwn(e aws.ENI, known registry.ENI, a netip.Addr) bool {
	first := func(all []netip.Addr) bool { return len(all) > 0 && a == all[0] }
	return IsBoot(known, e) && (first(e.Addrs) || first(e.IPv6Addrs))
}

// Carries reports whether the ENI e has the address, as a single address or in a prefix.
func Carries(e aws.ENI, a netip.Addr) bool {
	return slices.Contains(e.Addrs, a) || slices.Contains(e.IPv6Addrs, a) ||
		slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes),
			func(c netip.Prefix) bool { return c.Contains(a) })
}

// Delegates reports whether the ENI e has exactly this prefix. If e has only a single address within the prefix,
// Delegates returns false.
func Delegates(e aws.ENI, c netip.Prefix) bool {
	return slices.Contains(e.Prefixes, c) || slices.Contains(e.IPv6Prefixes, c)
}

// MarkOnRequest returns known, the registry's entry of an ENI, with the mark that a pod has asked for the ENI.
func MarkOnRequest(known registry.ENI, e aws.ENI) registry.ENI {
	known.Request()
	known.Confirm()
	known.Tags, known.Groups = e.Tags, GroupsOf(e)
	return known
}

// MarkProvisioning records whether the ENI belongs to an unfinished Provision: see Provision of package ipam.
func MarkProvisioning(s *registry.State, id string, provisioning bool) {
	s.Edit(id, func(e *registry.ENI) { e.Provisioning = provisioning })
}

// EndProvision records that a Provision has returned the ENI to the operator. EndProvision also deletes the intents to
// attach the ENI. With such an intent, a later process would continue the Provision.
func EndProvision(s *registry.State, id string) {
	MarkProvisioning(s, id, false)
	maps.DeleteFunc(s.Intents, func(_ string, i registry.Intent) bool {
		return i.Action == AttachAction && i.ENI == id
	})
}
