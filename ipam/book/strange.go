// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"fmt"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Strange returns why an ENI cannot have an address or a prefix that EC2 or metadata reports for it. It returns nil if
// the ENI can have all of them. No pod gets a strange address: the pod's packets would be lost, or the address would be
// another host's.
//
// All addresses must be in the ENI's subnet, if that is known. An address must not be one that a subnet reserves, such
// as the VPC router's. A subnet reserves the first four and the last (VPC user guide, "Subnet sizing"). No other ENI of
// this node may have them.
func Strange(s *registry.State, id string, e registry.ENI, addrs []netip.Addr, cidrs []netip.Prefix) error {
	for _, a := range addrs {
		if err := strangeBlock(s, id, e, netip.PrefixFrom(a, a.BitLen())); err != nil {
			return fmt.Errorf("%s is not used, because it cannot be on %s: %w", a, id, err)
		}
	}
	for _, c := range cidrs {
		if err := strangeBlock(s, id, e, c); err != nil {
			return fmt.Errorf("%s is not used, because it cannot be on %s: %w", c, id, err)
		}
	}
	return nil
}

// StrangeNew returns why an ENI cannot be the one that EC2 was just asked to create. The
// registry has it already, it was created for another owner, or it is attached. Pods would
// get addresses of an ENI that is not this instance's.
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

// strangeBlock does what Strange does, for a block.
func strangeBlock(s *registry.State, id string, e registry.ENI, b netip.Prefix) error {
	subnet := e.CIDR
	if b.Addr().Is6() {
		subnet = e.CIDR6
	}
	if subnet.IsValid() && (b.Bits() < subnet.Bits() || !subnet.Contains(b.Addr())) {
		return fmt.Errorf("its subnet is %s", subnet)
	}
	if subnet.IsValid() && Reserves(subnet, b) {
		return fmt.Errorf("AWS reserves it, or a part of it, in the subnet %s", subnet)
	}
	for other, o := range s.ENIs {
		if other != id && overlaps(o, b) {
			return fmt.Errorf("%s has it, too", other)
		}
	}
	return nil
}

// Reserves reports whether a block has one of the reserved addresses of the subnet: the first
// four and the last.
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

// overlaps reports whether an ENI has an address of the block, or a prefix that overlaps it.
func overlaps(e registry.ENI, b netip.Prefix) bool {
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
