// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"errors"
	"net/netip"
	"slices"
)

// prefixBits is the length of a delegated IPv4 prefix (Guide: "Prefix delegation for Amazon EC2 network interfaces").
const prefixBits = 28

// takeFirst takes the addresses of a new ENI, all or none: the primary one, EC2's choice if zero, then the others, then
// count more.
func (sub *subnet) takeFirst(primary netip.Addr, others []netip.Addr, count int) ([]netip.Addr, error) {
	listed := others
	if primary.IsValid() {
		listed = append([]netip.Addr{primary}, others...)
	} else {
		count++
	}
	// The listed ones first, so that EC2's own choices cannot run into them.
	if err := sub.takeThese(listed, "InvalidIPAddress.InUse"); err != nil {
		return nil, err
	}
	more, err := sub.takeAny(count)
	if err != nil {
		sub.pool.give(singles(listed)...)
		return nil, err
	}
	if primary.IsValid() {
		return append(listed, more...), nil
	}
	return slices.Concat(more[:1], listed, more[1:]), nil
}

// takeThese takes addresses that were asked for by name, all or none. One that somebody has is refused with the code
// inUse.
func (sub *subnet) takeThese(wanted []netip.Addr, inUse string) error {
	if err := sub.check(wanted); err != nil {
		return err
	}
	if b, ok := sub.pool.takeThese(singles(wanted)); !ok {
		return refuse(inUse, "Address %s is in use.", b.Addr())
	}
	return nil
}

// check refuses addresses that are not the subnet's to give, and addresses that come twice.
func (sub *subnet) check(wanted []netip.Addr) error {
	for i, a := range wanted {
		switch {
		case !sub.CIDR.Contains(a):
			return refuse("InvalidParameterValue", "Address %s does not fall within the subnet's address range", a)
		case sub.pool.reserved(a):
			return refuse("InvalidParameterValue", "Address %s is in subnet's reserved address range", a)
		case slices.Contains(wanted[:i], a):
			return invalid(a, "privateIpAddress", "It is there twice.")
		}
	}
	return nil
}

// takeAny takes addresses of EC2's choice, all or none.
func (sub *subnet) takeAny(count int) ([]netip.Addr, error) {
	blocks, ok := sub.pool.takeAll(32, count)
	if !ok {
		return nil, refuse("InsufficientFreeAddressesInSubnet",
			"The specified subnet does not have enough free addresses to satisfy the request.")
	}
	return addrs(blocks), nil
}

// takePrefixes takes the wanted prefixes and count of EC2's choice, all or none. A subnet without an aligned free /28 is
// out of prefixes, however many single addresses it has (Guide: "Prefix delegation for Amazon EC2 network interfaces";
// the code is in practice: not in the documentation).
func (sub *subnet) takePrefixes(wanted []netip.Prefix, count int) ([]netip.Prefix, error) {
	for i, p := range wanted {
		if p.Bits() != prefixBits || !sub.CIDR.Contains(p.Addr()) || slices.Contains(wanted[:i], p) {
			return nil, invalid(p, "ipv4Prefix", "It must be a /28 block of the subnet.")
		}
	}
	_, free := sub.pool.takeThese(wanted)
	if free {
		if more, ok := sub.pool.takeAll(prefixBits, count); ok {
			return append(wanted, more...), nil
		}
		sub.pool.give(wanted...)
	}
	return nil, refuse("InsufficientCidrBlocks", "The specified subnet does not have enough free cidr blocks to satisfy the request.")
}

// atCreation is how CreateNetworkInterface words a lack of prefixes (in practice: not in the documentation).
func atCreation(err error) error {
	if r, ok := errors.AsType[*refusal](err); ok && r.code == "InsufficientCidrBlocks" {
		return refuse("InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes")
	}
	return err
}

// tooManyAddresses is the refusal of more addresses and prefixes than an ENI may have.
func tooManyAddresses() error {
	return refuse("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
}

// noPrefixes is the refusal of prefixes by a type that is not built on Nitro. The guide says that it cannot have them, but
// not with which code.
func noPrefixes(instanceType string) error {
	return refuse("UnsupportedOperation", "Prefixes are not supported on %s.", instanceType)
}
