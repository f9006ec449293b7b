// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import "net/netip"

type assignIPv6AddressesInput struct {
	NetworkInterfaceID string         `ec2:"NetworkInterfaceId,required"`
	IPv6AddressCount   *int           `ec2:"Ipv6AddressCount"`
	IPv6Addresses      []netip.Addr   `ec2:"Ipv6Addresses"`
	IPv6PrefixCount    *int           `ec2:"Ipv6PrefixCount"`
	IPv6Prefixes       []netip.Prefix `ec2:"Ipv6Prefix"`
}

type assignIPv6AddressesOutput struct {
	head
	NetworkInterfaceID string            `xml:"networkInterfaceId"`
	Addresses          set[netip.Addr]   `xml:"assignedIpv6Addresses"`
	Prefixes           set[netip.Prefix] `xml:"assignedIpv6PrefixSet"`
}

// assignIPv6Addresses gives an ENI IPv6 addresses or prefixes (API: AssignIpv6Addresses). The answer omits the
// addresses that the ENI had before. If another ENI has a requested address, the simulator returns the same error as
// for IPv4. This is a guess.
func (s *Sim) assignIPv6Addresses(in *assignIPv6AddressesInput) (*assignIPv6AddressesOutput, error) {
	d := demand{in.IPv6Addresses, in.IPv6AddressCount, in.IPv6Prefixes, in.IPv6PrefixCount}
	if err := d.checkAssign("IPv6"); err != nil {
		return nil, err
	}
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	if e.subnet.v6 == nil {
		return nil, noFamily(e.subnet, "IPv6")
	}
	if a := e.attachment; a != nil && a.instance.limits.IPv6PerENI == 0 {
		return nil, noIPv6(a.instance.Type)
	}
	d = d.withoutHeld(e.v6)
	_, most := s.maxSlots(e)
	if err := e.checkHold(e.v6.slots()+d.slots(), most, d); err != nil {
		return nil, err
	}
	got, err := s.assignDemand(e, &e.v6, e.subnet.v6, d)
	if err != nil {
		return nil, err
	}
	return &assignIPv6AddressesOutput{
		NetworkInterfaceID: e.id, Addresses: set[netip.Addr]{got.addrs}, Prefixes: set[netip.Prefix]{got.prefixes},
	}, nil
}

type unassignIPv6AddressesInput struct {
	NetworkInterfaceID string         `ec2:"NetworkInterfaceId,required"`
	IPv6Addresses      []netip.Addr   `ec2:"Ipv6Addresses"`
	IPv6Prefixes       []netip.Prefix `ec2:"Ipv6Prefix"`
}

type unassignIPv6AddressesOutput struct {
	head
	NetworkInterfaceID string            `xml:"networkInterfaceId"`
	Addresses          set[netip.Addr]   `xml:"unassignedIpv6Addresses"`
	Prefixes           set[netip.Prefix] `xml:"unassignedIpv6PrefixSet"`
}

// unassignIPv6Addresses removes IPv6 addresses and prefixes from an ENI: all that the request names, or none
// (API: UnassignIpv6Addresses). The simulator does not have EnablePrimaryIpv6, so no IPv6 address is a primary address.
func (s *Sim) unassignIPv6Addresses(in *unassignIPv6AddressesInput) (*unassignIPv6AddressesOutput, error) {
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	released := holding{in.IPv6Addresses, in.IPv6Prefixes}
	if released.slots() == 0 {
		return nil, refuse("MissingParameter", "The request must contain the parameter ipv6Addresses or ipv6Prefix.")
	}
	if err := e.checkRelease(e.v6, released); err != nil {
		return nil, err
	}
	s.releaseBlocks(e, &e.v6, e.subnet.v6, released)
	return &unassignIPv6AddressesOutput{
		NetworkInterfaceID: e.id, Addresses: set[netip.Addr]{released.addrs},
		Prefixes: set[netip.Prefix]{released.prefixes},
	}, nil
}
