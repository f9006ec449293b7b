// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// inPrefixes matches packets whose source ("saddr") or destination ("daddr") is in one of the prefixes. With "not", it
// matches packets of the prefixes' family whose address is outside all prefixes. Several prefixes become an anonymous
// set.
func inPrefixes(word string, not bool, prefixes []netip.Prefix) Term {
	prefixes = outermostPrefixes(prefixes)
	if len(prefixes) == 0 {
		return Term{"ip " + word + " {}", func(*transaction) ([]attribute, error) {
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
		text += "{ " + joinPrefixes(prefixes) + " }"
	case p.IsSingleIP():
		text += p.Addr().String()
	default:
		text += p.String()
	}
	return Term{text, func(x *transaction) ([]attribute, error) {
		offset, size := uint32(12), uint32(4)
		if f == "ip6" {
			offset, size = 8, 16
		}
		if word == "daddr" {
			offset += size
		}
		return append(exprs(meta(unix.NFT_META_NFPROTO), equal([]byte{family}),
			payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size)),
			comparePrefixes(x, prefixes, not)...), nil
	}}
}

func joinPrefixes(prefixes []netip.Prefix) string {
	words := make([]string, len(prefixes))
	for i, p := range prefixes {
		words[i] = p.String()
	}
	return strings.Join(words, ", ")
}

func comparePrefixes(x *transaction, prefixes []netip.Prefix, not bool) []attribute {
	if len(prefixes) > 1 {
		return exprs(lookupSet(x.addSet(prefixes), not))
	}
	p := prefixes[0]
	network := bitwise(net.CIDRMask(p.Bits(), p.Addr().BitLen()), make([]byte, p.Addr().BitLen()/8))
	if not {
		return exprs(network, notEqual(p.Addr().AsSlice()))
	}
	return exprs(network, equal(p.Addr().AsSlice()))
}

// anonymous is the set name in a request that makes an anonymous set. Such a set belongs to one rule. The kernel
// replaces %d by a number.
const anonymous = "__set%d"

// mostElements is the maximum number of elements in one message. With more elements, an attribute could exceed its
// limit of 64 kB. The kernel's error report, which repeats the message, has the same limit.
const mostElements = 1000

// addSet adds requests that make an anonymous set of prefixes for the next rule. number identifies the set in this
// transaction.
func (x *transaction) addSet(prefixes []netip.Prefix) (number uint32) {
	x.sets++
	all := intervalElements(prefixes)
	typ, size := uint32(7), uint32(4) // ipv4_addr, of nftables/datatype.h: nft(8) needs the type to print the elements
	if prefixes[0].Addr().Is6() {
		typ, size = 8, 16 // ipv6_addr
	}
	bigEndian := []byte{0, 4, 2, 0, 0, 0} // NFTNL_UDATA_SET_KEYBYTEORDER: only nft(8) needs it
	x.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, attrString(unix.NFTA_SET_TABLE, x.table),
		attrString(unix.NFTA_SET_NAME, anonymous),
		attrBigEndian(unix.NFTA_SET_FLAGS, unix.NFT_SET_ANONYMOUS|unix.NFT_SET_CONSTANT|unix.NFT_SET_INTERVAL),
		attrBigEndian(unix.NFTA_SET_KEY_TYPE, typ), attrBigEndian(unix.NFTA_SET_KEY_LEN, size),
		attrBigEndian(unix.NFTA_SET_ID, x.sets),
		nested(unix.NFTA_SET_DESC, attrBigEndian(unix.NFTA_SET_DESC_SIZE, uint32(len(all)))),
		attr(unix.NFTA_SET_USERDATA, bigEndian))
	for part := range slices.Chunk(all, mostElements) {
		list := make([]attribute, len(part))
		for i, e := range part {
			list[i] = e.attribute(i + 1)
		}
		x.add(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, attrString(unix.NFTA_SET_ELEM_LIST_SET, anonymous),
			attrBigEndian(unix.NFTA_SET_ELEM_LIST_SET_ID, x.sets), attrString(unix.NFTA_SET_ELEM_LIST_TABLE, x.table),
			nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...))
	}
	return x.sets
}

// outermostPrefixes sorts the prefixes, and leaves out each prefix that lies inside another prefix: the intervals of a
// set must not overlap.
func outermostPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	var sorted []netip.Prefix
	for _, p := range prefixes { // there are few prefixes, and slices.SortFunc would add 10 kB to the program
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

// An intervalElement is an element of a set of intervals. It has the first address of an interval. If beyond is true,
// it has the first address after the interval.
type intervalElement struct {
	addr   netip.Addr
	beyond bool
}

func (e intervalElement) attribute(number int) attribute {
	key := dataAttr(unix.NFTA_SET_ELEM_KEY, e.addr.AsSlice())
	if e.beyond {
		return nested(number, attrBigEndian(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END), key)
	}
	return nested(number, key)
}

// intervalElements returns two elements for each prefix: the first address of the prefix, and the first address after
// the prefix. The second element is missing if the prefix ends with the last address of the family.
func intervalElements(prefixes []netip.Prefix) []intervalElement {
	var all []intervalElement
	for _, p := range prefixes {
		all = append(all, intervalElement{addr: p.Addr()})
		if beyond := lastAddr(p).Next(); beyond.IsValid() {
			all = append(all, intervalElement{beyond, true})
		}
	}
	return all
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return addrFrom(b)
}
