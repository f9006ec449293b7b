// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// A Row is what the index of a list has of each element, in so many digits.
type Row[T any] struct {
	Digits int
	Fits   func(T) bool // reports whether it has all of the element
	Write  func(row []byte, v T)
	Read   func(rows string, all []T) // reads all elements: a call for each would double the cost of an address
}

// A list is one with an index.
type list[T any] struct {
	index
	all *[]T
	row Row[T]
}

// Addrs is a List of addresses.
func Addrs(c *codec.Codec, name string, v *[]netip.Addr) {
	List(c, name, v, codec.Addr, Row[netip.Addr]{wordSize, netip.Addr.Is4, putAddr, readAddrs})
}

// List is a codec.List. A node has thousands of elements. So an index precedes a long list: the length of its text in
// eight hexadecimal digits, and a row for each element.
func List[T any](c *codec.Codec, name string, v *[]T, kind func(*T, *codec.Codec), row Row[T]) {
	if c.Writes() {
		writeList(c, name, *v, kind, row)
		return
	}
	l := list[T]{all: v, row: row}
	if codec.Field(c, indexName(name), &l.index, (*index).read); l.rows == "" {
		codec.List(c, name, v, kind)
	} else {
		codec.Field(c, name, &l, (*list[T]).read)
	}
}

// read reads a list by its index.
func (l *list[T]) read(c *codec.Codec) {
	in, at := c.Input()
	end, n := at, len(l.rows)-wordSize
	if n >= 0 && n%l.row.Digits == 0 {
		end += int(word(l.rows))
	}
	if end <= at || end > len(in) || in[at] != '[' || in[end-1] != ']' {
		c.Fail(errIndex)
		return
	}
	c.Seek(end)
	*l.all = make([]T, n/l.row.Digits)
	l.row.Read(l.rows[wordSize:], *l.all)
}

func writeList[T any](c *codec.Codec, name string, all []T, kind func(*T, *codec.Codec), row Row[T]) {
	const few = 8
	if len(all) < few || slices.ContainsFunc(all, func(v T) bool { return !row.Fits(v) }) {
		codec.List(c, name, &all, kind)
		return
	}
	x := newIndexer(c, name, wordSize+row.Digits*len(all))
	from := len(c.Output()) + len(`,"`) + len(name) + len(`":`)
	codec.List(c, name, &all, kind)
	rows := c.Output()[x.at:]
	putWord(rows, uint32(len(c.Output())-from))
	for i, v := range all {
		row.Write(rows[wordSize+row.Digits*i:], v)
	}
}

// putAddr writes an IPv4 address as eight digits.
func putAddr(row []byte, a netip.Addr) {
	b := a.As4()
	putWord(row, binary.BigEndian.Uint32(b[:]))
}

func readAddrs(rows string, all []netip.Addr) {
	// such bounds are checked once
	for n, i := 0, 0; n < len(all) && i <= len(rows)-wordSize; n, i = n+1, i+wordSize {
		all[n] = numbered(number(eight(rows[i:])))
	}
}

// BlockDigits is how many digits a block of IPv4 and a time take.
const BlockDigits = 4 * wordSize

// FitsBlock reports whether they fit. The zero time does.
func FitsBlock(b netip.Prefix, t time.Time) bool {
	return b.Addr().Is4() && (t.IsZero() || t.Unix() > 0 && time.Unix(0, t.UnixNano()).Equal(t))
}

// WriteBlock writes a block and a time: its nanoseconds since 1970, or 0.
func WriteBlock(row []byte, b netip.Prefix, t time.Time) {
	putAddr(row, b.Addr())
	putWord(row[wordSize:], uint32(b.Bits()))
	var n int64
	if !t.IsZero() {
		n = t.UnixNano()
	}
	putWord(row[2*wordSize:], uint32(n>>32))
	putWord(row[3*wordSize:], uint32(n))
}

// ReadBlock reads what WriteBlock has written.
func ReadBlock(row string) (b netip.Prefix, t time.Time) {
	b = netip.PrefixFrom(numbered(word(row)), int(word(row[wordSize:])))
	if n := int64(word(row[2*wordSize:]))<<32 | int64(word(row[3*wordSize:])); n != 0 {
		t = time.Unix(0, n).UTC()
	}
	return b, t
}
