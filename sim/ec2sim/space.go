// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// The lengths of delegated prefixes (Guide: "Prefix delegation for Amazon EC2 network interfaces").
const (
	prefixBits4 = 28
	prefixBits6 = 80
)

// A space has the addresses of one family in a subnet.
type space struct {
	cidr       netip.Prefix
	prefixBits int
	pool       pool
}

// takeDemand takes all blocks for a demand, or none. The argument inUse is the code of the error if a requested address
// is already in use.
func (sp *space) takeDemand(d demand, inUse string) (h holding, err error) {
	switch {
	case len(d.addrs) > 0:
		h.addrs, err = d.addrs, sp.takeThese(d.addrs, inUse)
	case d.wantsPrefixes():
		h.prefixes, err = sp.takePrefixes(d.prefixes, intValue(d.prefixCount))
	default:
		h.addrs, err = sp.takeAny(intValue(d.count))
	}
	if err != nil {
		return holding{}, err
	}
	return h, nil
}

// takeFirst takes all addresses of a new ENI, or none. These are the addresses in the request, and chosenCount
// addresses that EC2 chooses. If the request has no primary address, EC2 also chooses the primary address.
func (sp *space) takeFirst(primary netip.Addr, secondary []netip.Addr, chosenCount int) ([]netip.Addr, error) {
	listed := secondary
	if primary.IsValid() {
		listed = append([]netip.Addr{primary}, secondary...)
	} else {
		chosenCount++
	}
	// Take the listed addresses first, so that EC2 does not choose them.
	if err := sp.takeThese(listed, "InvalidIPAddress.InUse"); err != nil {
		return nil, err
	}
	more, err := sp.takeAny(chosenCount)
	if err != nil {
		sp.pool.putBack(singleBlocks(listed)...)
		return nil, err
	}
	if primary.IsValid() {
		return append(listed, more...), nil
	}
	return slices.Concat(more[:1], listed, more[1:]), nil
}

// takeThese takes all wanted addresses, or none. The argument inUseCode is the code of the error if a wanted address is
// already in use.
func (sp *space) takeThese(wanted []netip.Addr, inUseCode string) error {
	if err := sp.checkAddrs(wanted); err != nil {
		return err
	}
	if b, ok := sp.pool.takeThese(singleBlocks(wanted)); !ok {
		return refuse(inUseCode, "Address %s is in use.", b.Addr())
	}
	return nil
}

// checkAddrs refuses addresses outside of the subnet, reserved addresses and duplicates.
func (sp *space) checkAddrs(wanted []netip.Addr) error {
	for i, a := range wanted {
		switch {
		case !sp.cidr.Contains(a):
			return refuse("InvalidParameterValue", "Address %s does not fall within the subnet's address range", a)
		case sp.pool.isReserved(a):
			return refuse("InvalidParameterValue", "Address %s is in subnet's reserved address range", a)
		case slices.Contains(wanted[:i], a):
			return invalidValue(a, "addresses", "It is there twice.")
		}
	}
	return nil
}

// takeAny takes free single addresses of EC2's choice. The argument "count" is their number. If too few are free,
// takeAny takes none.
func (sp *space) takeAny(count int) ([]netip.Addr, error) {
	blocks, ok := sp.pool.takeAny(sp.cidr.Addr().BitLen(), count)
	if !ok {
		return nil, refuse("InsufficientFreeAddressesInSubnet",
			"The specified subnet does not have enough free addresses to satisfy the request.")
	}
	return addrsOf(blocks), nil
}

// takePrefixes takes the wanted prefixes, and chosenCount prefixes of EC2's choice: all of them, or none. Even a subnet
// with many free addresses may lack an aligned free block (Guide: "Prefix delegation for Amazon EC2 network
// interfaces"). In practice, EC2 then answers InsufficientCidrBlocks.
func (sp *space) takePrefixes(wanted []netip.Prefix, chosenCount int) ([]netip.Prefix, error) {
	for i, p := range wanted {
		if p.Bits() != sp.prefixBits || !sp.cidr.Contains(p.Addr()) || slices.Contains(wanted[:i], p) {
			return nil, invalidValue(p, "prefixes", fmt.Sprintf("It must be a /%d block of the subnet.", sp.prefixBits))
		}
	}
	if _, free := sp.pool.takeThese(wanted); free {
		if more, ok := sp.pool.takeAny(sp.prefixBits, chosenCount); ok {
			return append(wanted, more...), nil
		}
		sp.pool.putBack(wanted...)
	}
	return nil, refuse("InsufficientCidrBlocks",
		"The specified subnet does not have enough free cidr blocks to satisfy the request.")
}

// atCreation replaces the error InsufficientCidrBlocks with the error that CreateNetworkInterface returns in this case.
// In practice, CreateNetworkInterface returns InvalidParameterValue for IPv4. For IPv6, the error is a guess.
func atCreation(err error, family string) error {
	if r, ok := errors.AsType[*refusal](err); ok && r.code == "InsufficientCidrBlocks" {
		return refuse("InvalidParameterValue", "There aren't sufficient free %s addresses or prefixes", family)
	}
	return err
}

// noFamily returns the error for a subnet that has no CIDR of the requested family. The error code is a guess.
func noFamily(sub *subnet, family string) error {
	return refuse("InvalidParameterValue", "The subnet %s does not have an %s CIDR block associated with it.",
		sub.ID, family)
}
