// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// inPrefixes matches one of the two addresses of a packet against prefixes: one prefix by a
// comparison, several by an anonymous set.
func inPrefixes(word string, not bool, prefixes []netip.Prefix) Term {
	prefixes = outermost(prefixes)
	if len(prefixes) == 0 {
		return Term{"ip " + word + " {}", func(*nftables.Conn, *nftables.Table) ([]expr.Any, error) {
			return nil, errors.New("no prefixes")
		}}
	}
	f, family := nfFamily(prefixes[0].Addr())
	text := f + " " + word + " "
	if not {
		text += "!= "
	}
	switch p := prefixes[0]; {
	case len(prefixes) > 1:
		text += "{ " + list(prefixes) + " }"
	case p.IsSingleIP():
		text += p.Addr().String()
	default:
		text += p.String()
	}
	return Term{text, func(c *nftables.Conn, t *nftables.Table) ([]expr.Any, error) {
		load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
		if f == "ip6" {
			load.Offset, load.Len = 8, 16
		}
		if word == "daddr" {
			load.Offset += load.Len
		}
		compare, err := compare(c, t, prefixes, not)
		return append(exprs(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{family}), load), compare...), err
	}}
}

func list(prefixes []netip.Prefix) string {
	words := make([]string, len(prefixes))
	for i, p := range prefixes {
		words[i] = p.String()
	}
	return strings.Join(words, ", ")
}

// compare compares the address in the register.
func compare(c *nftables.Conn, t *nftables.Table, prefixes []netip.Prefix, not bool) ([]expr.Any, error) {
	p := prefixes[0]
	if len(prefixes) == 1 {
		mask := &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(p.Addr().BitLen() / 8),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, p.Addr().BitLen()/8)}
		if not {
			return []expr.Any{mask, notEqual(p.Addr().AsSlice())}, nil
		}
		return []expr.Any{mask, equal(p.Addr().AsSlice())}, nil
	}
	set := &nftables.Set{Table: t, Anonymous: true, Constant: true, Interval: true, KeyType: nftables.TypeIPAddr}
	if p.Addr().Is6() {
		set.KeyType = nftables.TypeIP6Addr
	}
	err := c.AddSet(set, elements(prefixes))
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID, Invert: not}}, err
}

// outermost sorts prefixes and omits those that another contains, because the intervals of a
// set must not overlap.
func outermost(prefixes []netip.Prefix) []netip.Prefix {
	var sorted []netip.Prefix
	for _, p := range prefixes { // there are few, and a sort for their type would add 10 kB to the program
		sorted = append(sorted, p.Masked())
		for i := len(sorted) - 1; i > 0 && sorted[i].Compare(sorted[i-1]) < 0; i-- {
			sorted[i-1], sorted[i] = sorted[i], sorted[i-1]
		}
	}
	var kept []netip.Prefix
	for _, p := range sorted {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// elements are the first address of each prefix and the first beyond it.
func elements(prefixes []netip.Prefix) []nftables.SetElement {
	var all []nftables.SetElement
	for _, p := range prefixes {
		all = append(all, nftables.SetElement{Key: p.Addr().AsSlice()})
		if beyond := last(p).Next(); beyond.IsValid() {
			all = append(all, nftables.SetElement{Key: beyond.AsSlice(), IntervalEnd: true})
		}
	}
	return all
}

// last is the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return addrFrom(b)
}
