// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Strange returns an error if an ENI cannot have one of the addresses or prefixes that EC2 or metadata reports for it.
// A pod with such an address would lose its packets, or would have the address of another host.
//
// All addresses must be in the ENI's subnet, if the subnet is known. In each subnet, AWS reserves the first four
// addresses and the last address, for example for the VPC router (VPC user guide, "Subnet sizing"). No ENI can have
// such a reserved address. No two ENIs of this node can have the same address.
func Strange(s *registry.State, id string, e registry.ENI, addrs []netip.Addr, cidrs []netip.Prefix) error {
	for _, a := range addrs {
		if err := strangeBlock(s, id, e, netip.PrefixFrom(a, a.BitLen())); err != nil {
			return fmt.Errorf("this node does not use %[1]s, because %[1]s cannot be on %[2]s: %[3]w", a, id, err)
		}
	}
	for _, c := range cidrs {
		if err := strangeBlock(s, id, e, c); err != nil {
			return fmt.Errorf("this node does not use %[1]s, because %[1]s cannot be on %[2]s: %[3]w", c, id, err)
		}
	}
	return nil
}

// Sharers returns the ENIs of the registry, except the ENI with this id, that have one of the addresses or an address
// of one of the prefixes.
func Sharers(s *registry.State, id string, addrs []netip.Addr, cidrs []netip.Prefix) (others []string) {
	for other, o := range s.ENIs {
		if other != id && (slices.ContainsFunc(addrs, o.Has) ||
			slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return sharesAddr(o, c) })) {
			others = append(others, other)
		}
	}
	return others
}

// StrangeNew returns an error if the ENI e in EC2's answer to a creation cannot be the new ENI. The argument wanted is
// the description in the creation call. Without this check, pods could get addresses of an ENI that does not belong to
// this instance.
func StrangeNew(s *registry.State, e aws.ENI, wanted string) error {
	if _, known := s.ENIs[e.ID]; known {
		return fmt.Errorf("EC2 returned %s as a new ENI, but this node has had it before", e.ID)
	}
	if e.Description != "" && e.Description != wanted {
		return fmt.Errorf("EC2 returned %s as a new ENI, but its description is %.80q", e.ID, e.Description)
	}
	if e.Instance != "" {
		return fmt.Errorf("EC2 returned %s as a new ENI, but it is attached to %s", e.ID, e.Instance)
	}
	return nil
}

// strangeBlock does what Strange does, for one address or prefix.
func strangeBlock(s *registry.State, id string, e registry.ENI, b netip.Prefix) error {
	subnet := e.CIDR
	if b.Addr().Is6() {
		subnet = e.CIDR6
	}
	if subnet.IsValid() && (b.Bits() < subnet.Bits() || !subnet.Contains(b.Addr())) {
		return fmt.Errorf("the subnet of this ENI is %s", subnet)
	}
	if subnet.IsValid() && Reserves(subnet, b) {
		return fmt.Errorf("AWS reserves this address, or a part of this prefix, in the subnet %s", subnet)
	}
	for other, o := range s.ENIs {
		if other != id && sharesAddr(o, b) {
			return fmt.Errorf("%s has this address, or a part of this prefix, too", other)
		}
	}
	return nil
}

// Reserves reports whether AWS reserves an address of the block b in the subnet: see Strange.
func Reserves(subnet, b netip.Prefix) bool {
	const first = 4
	a := subnet.Masked().Addr()
	for range first {
		if b.Contains(a) {
			return true
		}
		a = a.Next()
	}
	return last(b) == last(subnet)
}

// last returns the last address of a block.
func last(b netip.Prefix) netip.Addr {
	bytes := b.Masked().Addr().AsSlice()
	for i := b.Bits(); i < b.Addr().BitLen(); i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// sharesAddr reports whether the ENI has an address of the block, or a prefix that overlaps the block.
func sharesAddr(e registry.ENI, b netip.Prefix) bool {
	if b.IsSingleIP() {
		return e.Has(b.Addr())
	}
	for _, a := range e.Addrs {
		if b.Contains(a) {
			return true
		}
	}
	for _, p := range e.Prefixes {
		if p.CIDR.Overlaps(b) {
			return true
		}
	}
	return false
}
