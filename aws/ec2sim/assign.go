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
	if err := in.check(); err != nil {
		return nil, err
	}
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	wanted := slices.DeleteFunc(slices.Clone(in.PrivateIPAddresses), func(a netip.Addr) bool { return slices.Contains(e.addrs, a) })
	asked := len(wanted) + len(in.IPv4Prefixes) + value(in.SecondaryPrivateIPAddressCount) + value(in.IPv4PrefixCount)
	switch {
	case e.slots()+asked > s.maxSlots(e):
		return nil, tooManyAddresses()
	case in.wantsPrefixes() && e.attachment != nil && e.attachment.instance.limits.Xen:
		return nil, noPrefixes(e.attachment.instance.Type)
	}
	if err := e.subnet.check(wanted); err != nil {
		return nil, err
	}
	if in.AllowReassignment {
		if err := s.reassign(wanted, e.subnet); err != nil {
			return nil, err
		}
	}
	as, prefixes, err := in.take(e.subnet, wanted)
	if err != nil {
		return nil, err
	}
	e.addrs, e.prefixes = append(e.addrs, as...), append(e.prefixes, prefixes...)
	s.changed(Addressed, e)
	if len(in.PrivateIPAddresses) > 0 {
		as = in.PrivateIPAddresses // also those that it had before: asking twice for an address is no error
	}
	return assigned(e, as, prefixes), nil
}

func assigned(e *eni, as []netip.Addr, prefixes []netip.Prefix) *assignPrivateIPAddressesOutput {
	out := &assignPrivateIPAddressesOutput{NetworkInterfaceID: e.id, Return: true}
	for _, a := range as {
		out.Addresses.Items = append(out.Addresses.Items, assignedAddress{a})
	}
	for _, p := range prefixes {
		out.Prefixes.Items = append(out.Prefixes.Items, prefixItem{p})
	}
	return out
}

// check wants exactly one way of asking (API: AssignPrivateIpAddresses: "You must specify either the IP addresses or
// the IP address count in the request", and the same of prefixes).
func (in *assignPrivateIPAddressesInput) check() error {
	given := []bool{len(in.PrivateIPAddresses) > 0, in.SecondaryPrivateIPAddressCount != nil,
		len(in.IPv4Prefixes) > 0, in.IPv4PrefixCount != nil}
	switch {
	case !slices.Contains(given, true):
		return refuse("MissingParameter", "Either the IP addresses or the IP address count should be provided.")
	case several(given...):
		return refuse("InvalidParameterCombination",
			"Only one of private IP addresses, their count, IPv4 prefixes and their count can be specified.")
	case in.SecondaryPrivateIPAddressCount != nil && *in.SecondaryPrivateIPAddressCount < 1:
		return invalid(*in.SecondaryPrivateIPAddressCount, "secondaryPrivateIpAddressCount", "It must be at least 1.")
	case in.IPv4PrefixCount != nil && *in.IPv4PrefixCount < 1:
		return invalid(*in.IPv4PrefixCount, "ipv4PrefixCount", "It must be at least 1.")
	}
	return nil
}

func (in *assignPrivateIPAddressesInput) wantsPrefixes() bool {
	return len(in.IPv4Prefixes) > 0 || in.IPv4PrefixCount != nil
}

// take takes what is asked for from the ENI's subnet.
func (in *assignPrivateIPAddressesInput) take(sub *subnet, wanted []netip.Addr) (as []netip.Addr, ps []netip.Prefix, err error) {
	switch {
	case in.SecondaryPrivateIPAddressCount != nil:
		as, err = sub.takeAny(*in.SecondaryPrivateIPAddressCount)
	case len(in.PrivateIPAddresses) > 0:
		as, err = wanted, sub.takeThese(wanted, "Resource.AlreadyAssigned")
	default:
		ps, err = sub.takePrefixes(in.IPv4Prefixes, value(in.IPv4PrefixCount))
	}
	return as, ps, err
}

// reassign takes the addresses from whoever has them, so that another can get them. Only secondary addresses move (API:
// AssignPrivateIpAddresses: "When you move a secondary private IP address").
func (s *Sim) reassign(wanted []netip.Addr, sub *subnet) error {
	losers := make([]*eni, len(wanted))
	for i, a := range wanted {
		losers[i] = s.owner(sub, a)
		if o := losers[i]; o != nil && (a == o.addrs[0] || !slices.Contains(o.addrs, a)) {
			return invalid(a, "privateIpAddress", "It is the primary address of "+o.id+", or in a prefix of it.")
		}
	}
	for i, o := range losers {
		if o != nil {
			s.release(o, wanted[i:i+1], nil)
		}
	}
	return nil
}

type unassignPrivateIPAddressesInput struct {
	NetworkInterfaceID string         `ec2:"NetworkInterfaceId,required"`
	IPv4Prefixes       []netip.Prefix `ec2:"Ipv4Prefix"`
	PrivateIPAddresses []netip.Addr   `ec2:"PrivateIpAddress"`
}

// unassignPrivateIPAddresses takes secondary addresses or prefixes from an ENI, all or none (API:
// UnassignPrivateIpAddresses). The primary address stays for the ENI's life (Guide: "Elastic network interfaces").
func (s *Sim) unassignPrivateIPAddresses(in *unassignPrivateIPAddressesInput) (*done, error) {
	e, err := s.eni(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	if len(in.PrivateIPAddresses) == 0 && len(in.IPv4Prefixes) == 0 {
		return nil, refuse("MissingParameter", "The request must contain the parameter privateIpAddress or ipv4Prefix.")
	}
	for _, a := range in.PrivateIPAddresses {
		switch {
		case a == e.addrs[0]:
			return nil, invalid(a, "privateIpAddress", "The primary IP address of an interface cannot be unassigned.")
		case !slices.Contains(e.addrs, a):
			return nil, refuse("InvalidParameterValue", "Some of the specified addresses are not assigned to interface %s", e.id)
		}
	}
	for _, p := range in.IPv4Prefixes {
		if !slices.Contains(e.prefixes, p) {
			return nil, refuse("InvalidParameterValue", "Some of the specified prefixes are not assigned to interface %s", e.id)
		}
	}
	s.release(e, in.PrivateIPAddresses, in.IPv4Prefixes)
	return &done{Return: true}, nil
}

// release takes addresses and prefixes from e and gives them back to the subnet.
func (s *Sim) release(e *eni, as []netip.Addr, ps []netip.Prefix) {
	e.addrs = slices.DeleteFunc(e.addrs, func(a netip.Addr) bool {
		gone := slices.Contains(as, a)
		if gone {
			e.subnet.pool.give(single(a))
		}
		return gone
	})
	e.prefixes = slices.DeleteFunc(e.prefixes, func(p netip.Prefix) bool {
		gone := slices.Contains(ps, p)
		if gone {
			e.subnet.pool.give(p)
		}
		return gone
	})
	s.changed(Addressed, e)
}

// value is *n, or 0.
func value(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}
