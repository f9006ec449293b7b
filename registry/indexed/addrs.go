// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// An addrList is a list of addresses, and its index.
type addrList struct {
	index
	all *[]netip.Addr
}

// Addrs is a List of addresses. A node has thousands. So an index precedes a long list of IPv4 addresses: the length
// of its text, and each address as a number, all of eight hexadecimal digits.
func Addrs(c *codec.Codec, name string, v *[]netip.Addr) {
	if c.Writes() {
		writeAddrs(c, name, *v)
		return
	}
	l := addrList{all: v}
	if codec.Field(c, indexName(name), &l.index, (*index).read); l.rows == "" {
		codec.List(c, name, v, codec.Addr)
	} else {
		codec.Field(c, name, &l, (*addrList).read)
	}
}

// read reads a list by its index.
func (l *addrList) read(c *codec.Codec) {
	in, at := c.Input()
	end := at
	if len(l.rows)%wordSize == 0 {
		end += int(word(l.rows))
	}
	if end <= at || end > len(in) || in[at] != '[' || in[end-1] != ']' {
		c.Fail(errIndex)
		return
	}
	c.Seek(end)
	all := make([]netip.Addr, len(l.rows)/wordSize-1)
	// such bounds are checked once
	for n, i := 0, wordSize; n < len(all) && i <= len(l.rows)-wordSize; n, i = n+1, i+wordSize {
		all[n] = numbered(number(eight(l.rows[i:])))
	}
	*l.all = all
}

func writeAddrs(c *codec.Codec, name string, all []netip.Addr) {
	const few = 8
	if len(all) < few || slices.ContainsFunc(all, func(a netip.Addr) bool { return !a.Is4() }) {
		codec.List(c, name, &all, codec.Addr)
		return
	}
	x := newIndexer(c, name, wordSize*(1+len(all)))
	from := len(c.Output()) + len(`,"`) + len(name) + len(`":`)
	codec.List(c, name, &all, codec.Addr)
	rows := c.Output()[x.at:]
	putWord(rows, uint32(len(c.Output())-from))
	for i, a := range all {
		b := a.As4()
		putWord(rows[wordSize*(1+i):], binary.BigEndian.Uint32(b[:]))
	}
}
