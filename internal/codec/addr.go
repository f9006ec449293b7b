// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Addrs is a List of addresses. A node has thousands. So an index precedes a long list of IPv4 addresses: the length
// of its text, and each address as a number, all of eight hexadecimal digits.
func Addrs(c *Codec, name string, v *[]netip.Addr) {
	if c.Writes() {
		writeAddrs(c, name, *v)
		return
	}
	var x index
	if c.begins(indexed(name)) {
		value(c, &x, (*index).describe)
	}
	if x.rows == "" {
		List(c, name, v, Addr)
	} else if c.begins(name) {
		*v = indexedAddrs(c, x.rows)
		c.member(false)
	}
}

// indexedAddrs reads a list by its index.
func indexedAddrs(c *Codec, rows string) []netip.Addr {
	end := c.at
	if len(rows)%wordSize == 0 {
		end += int(word(rows))
	}
	if end <= c.at || end > len(c.in) || c.in[c.at] != '[' || c.in[end-1] != ']' {
		c.Fail(errIndex)
		return nil
	}
	c.at = end
	all := make([]netip.Addr, len(rows)/wordSize-1)
	for n, i := 0, wordSize; n < len(all) && i <= len(rows)-wordSize; n, i = n+1, i+wordSize { // such bounds are checked once
		all[n] = numbered(number(eight(rows[i:])))
	}
	return all
}

func writeAddrs(c *Codec, name string, all []netip.Addr) {
	const few = 8
	if len(all) < few || slices.ContainsFunc(all, func(a netip.Addr) bool { return !a.Is4() }) {
		List(c, name, &all, Addr)
		return
	}
	x := newIndexer(c, indexed(name), wordSize*(1+len(all)))
	c.begins(name)
	from := len(c.out)
	c.out = append(c.out, '[')
	for i := range all {
		b := all[i].As4()
		putWord(c.out[x.at+wordSize*(1+i):], binary.BigEndian.Uint32(b[:]))
		c.comma()
		Addr(&all[i], c)
	}
	c.out = append(c.out, ']')
	putWord(c.out[x.at:], uint32(len(c.out)-from))
}

// Addr is an IP address.
func Addr(v *netip.Addr, c *Codec) {
	if !c.Writes() {
		*v = Scan(c, parseAddr)
		return
	}
	if v.Zone() != "" { // a zone may be any text
		s := v.String()
		Text(&s, c)
		return
	}
	b, _ := v.AppendText(append(c.out, '"')) // it has no error
	c.out = append(b, '"')
}

// parseAddr is netip.ParseAddr with less than half the work for IPv4. Most addresses are
// IPv4, and a node may have hundreds.
func parseAddr(s string) (netip.Addr, error) {
	var all, part uint32
	dots, digits := 0, 0
	for i := 0; i < len(s); i++ {
		if d := uint32(s[i]) - '0'; d <= 9 {
			part = part*10 + d
			digits++
			continue
		}
		if s[i] != '.' || !plain(part, digits) {
			return netip.ParseAddr(s)
		}
		all, part = all<<8|part, 0
		dots, digits = dots+1, 0
	}
	if dots != 3 || !plain(part, digits) {
		return netip.ParseAddr(s)
	}
	return netip.AddrFrom4([4]byte{byte(all >> 16), byte(all >> 8), byte(all), byte(part)}), nil
}

// plain reports whether a part of an IPv4 address has no leading zeros and is at most 255.
func plain(part uint32, digits int) bool {
	return digits == 1 || digits == 2 && part >= 10 || digits == 3 && part >= 100 && part <= 255
}
