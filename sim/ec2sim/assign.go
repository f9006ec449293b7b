// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"net/netip"
	"slices"
)

type assignPrivateIPAddressesInput struct {
	NetworkInterfaceID             string         `ec2:"NetworkInterfaceId,required"`
	AllowReassignment              bool           `ec2:"AllowReassignment"`
	IPv4PrefixCount                *int           `ec2:"Ipv4PrefixCount"`
	IPv4Prefixes                   []netip.Prefix `ec2:"Ipv4Prefix"`
	PrivateIPAddresses             []netip.Addr   `ec2:"PrivateIpAddress"`
	SecondaryPrivateIPAddressCount *int           `ec2:"SecondaryPrivateIpAddressCount"`
}

type assignPrivateIPAddressesOutput struct {
	head
	NetworkInterfaceID string               `xml:"networkInterfaceId"`
	Addresses          set[assignedAddress] `xml:"assignedPrivateIpAddressesSet"`
	Prefixes           set[prefixItem]      `xml:"assignedIpv4PrefixSet"`
	Return             bool                 `xml:"return"`
}

type assignedAddress struct {
	Address netip.Addr `xml:"privateIpAddress"`
}

// assignPrivateIPAddresses gives an ENI secondary addresses or prefixes (API: AssignPrivateIpAddresses).
func (s *Sim) assignPrivateIPAddresses(in *assignPrivateIPAddressesInput) (*assignPrivateIPAddressesOutput, error) {
	d := demand{in.PrivateIPAddresses, in.SecondaryPrivateIPAddressCount, in.IPv4Prefixes, in.IPv4PrefixCount}
	if err := d.checkAssign("IPv4"); err != nil {
		return nil, err
	}
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	if e.subnet.v4 == nil {
		return nil, noFamily(e.subnet, "IPv4")
	}
	d = d.withoutHeld(e.v4)
	most, _ := s.maxSlots(e)
	if err := e.checkHold(e.v4.slots()+d.slots(), most, d); err != nil {
		return nil, err
	}
	if in.AllowReassignment {
		if err := s.takeFromOwners(d.addrs, e.subnet); err != nil {
			return nil, err
		}
	}
	got, err := s.assignDemand(e, &e.v4, e.subnet.v4, d)
	if err != nil {
		return nil, err
	}
	if len(in.PrivateIPAddresses) > 0 {
		// The answer lists all requested addresses, even the addresses that the ENI had before the request.
		got.addrs = in.PrivateIPAddresses
	}
	out := &assignPrivateIPAddressesOutput{NetworkInterfaceID: e.id, Return: true}
	for _, a := range got.addrs {
		out.Addresses.Items = append(out.Addresses.Items, assignedAddress{a})
	}
	for _, p := range got.prefixes {
		out.Prefixes.Items = append(out.Prefixes.Items, prefixItem{p})
	}
	return out, nil
}

// assignDemand assigns the addresses or prefixes that the demand d asks for, and returns them. The argument sp has the
// subnet's addresses of one family, and h has the ENI's addresses and prefixes of this family. assignDemand marks
// blocks in sp as taken, and adds the blocks to h.
func (s *Sim) assignDemand(e *eni, h *holding, sp *space, d demand) (got holding, err error) {
	if got, err = sp.takeDemand(d, "Resource.AlreadyAssigned"); err != nil {
		return holding{}, err
	}
	h.addrs, h.prefixes = append(h.addrs, got.addrs...), append(h.prefixes, got.prefixes...)
	s.publishChange(Addressed, e)
	return got, nil
}

// takeFromOwners releases the wanted addresses that other ENIs have. It refuses primary addresses, and addresses in
// delegated prefixes (API: AssignPrivateIpAddresses: "When you move a secondary private IP address").
func (s *Sim) takeFromOwners(wanted []netip.Addr, sub *subnet) error {
	if err := sub.v4.checkAddrs(wanted); err != nil {
		return err
	}
	losers := make([]*eni, len(wanted))
	for i, a := range wanted {
		losers[i] = s.ownerOf(sub, a)
		if o := losers[i]; o != nil && (a == o.primary() || !slices.Contains(o.v4.addrs, a)) {
			return invalidValue(a, "privateIpAddress", "It is the primary address of "+o.id+", or in a prefix of it.")
		}
	}
	for i, o := range losers {
		if o != nil {
			s.releaseBlocks(o, &o.v4, sub.v4, holding{addrs: wanted[i : i+1]})
		}
	}
	return nil
}

type unassignPrivateIPAddressesInput struct {
	NetworkInterfaceID string         `ec2:"NetworkInterfaceId,required"`
	IPv4Prefixes       []netip.Prefix `ec2:"Ipv4Prefix"`
	PrivateIPAddresses []netip.Addr   `ec2:"PrivateIpAddress"`
}

// unassignPrivateIPAddresses removes secondary addresses and prefixes from an ENI: all that the request names, or none
// (API: UnassignPrivateIpAddresses). The primary address cannot be removed (Guide: "Elastic network interfaces").
func (s *Sim) unassignPrivateIPAddresses(in *unassignPrivateIPAddressesInput) (*emptyOutput, error) {
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	released := holding{in.PrivateIPAddresses, in.IPv4Prefixes}
	switch {
	case released.slots() == 0:
		return nil, refuse("MissingParameter", "The request must contain the parameter privateIpAddress or ipv4Prefix.")
	case e.primary().IsValid() && slices.Contains(released.addrs, e.primary()):
		return nil, invalidValue(e.primary(), "privateIpAddress",
			"The primary IP address of an interface cannot be unassigned.")
	}
	if err := e.checkRelease(e.v4, released); err != nil {
		return nil, err
	}
	s.releaseBlocks(e, &e.v4, e.subnet.v4, released)
	return &emptyOutput{Return: true}, nil
}

// checkRelease refuses the release if the ENI lacks an address or a prefix that the request wants to release.
func (e *eni) checkRelease(h, released holding) error {
	for _, a := range released.addrs {
		if !slices.Contains(h.addrs, a) {
			return refuse("InvalidParameterValue",
				"Some of the specified addresses are not assigned to interface %s", e.id)
		}
	}
	for _, p := range released.prefixes {
		if !slices.Contains(h.prefixes, p) {
			return refuse("InvalidParameterValue",
				"Some of the specified prefixes are not assigned to interface %s", e.id)
		}
	}
	return nil
}

func (s *Sim) releaseBlocks(e *eni, h *holding, sp *space, released holding) {
	h.addrs = slices.DeleteFunc(h.addrs, func(a netip.Addr) bool {
		gone := slices.Contains(released.addrs, a)
		if gone {
			sp.pool.putBack(singleBlock(a))
		}
		return gone
	})
	h.prefixes = slices.DeleteFunc(h.prefixes, func(p netip.Prefix) bool {
		gone := slices.Contains(released.prefixes, p)
		if gone {
			sp.pool.putBack(p)
		}
		return gone
	})
	s.publishChange(Addressed, e)
}
