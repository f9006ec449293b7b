// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// Rows describe the index of a list. For each element, the index has a row of Digits hexadecimal digits.
type Rows struct {
	Digits int
	Len    int // how many rows to write; 0: an element does not fit into a row
	Write  func(rows []byte)
	Read   func(rows string)
}

// Addrs describes a member that is a list of addresses: see List.
func Addrs(c *codec.Codec, name string, v *[]netip.Addr) {
	r := Rows{Digits: wordSize, Len: len(*v)}
	for _, a := range *v {
		if !a.Is4() {
			r.Len = 0
		}
	}
	r.Write = func(rows []byte) {
		for i, a := range *v {
			b := a.As4()
			putWord(rows[wordSize*i:], binary.BigEndian.Uint32(b[:]))
		}
	}
	r.Read = func(rows string) {
		all := make([]netip.Addr, len(rows)/wordSize)
		// the compiler needs only one check of bounds in this form
		for n, i := 0, 0; n < len(all) && i <= len(rows)-wordSize; n, i = n+1, i+wordSize {
			all[n] = numbered(number(eight(rows[i:])))
		}
		*v = all
	}
	List(c, name, r, func() { codec.List(c, name, v, codec.Addr) })
}

// List describes a member that is a list. The function all describes the list without an index. A node's list has
// thousands of elements, so an index precedes a long list. The index is the length of the list's text in eight
// hexadecimal digits, and the rows.
func List(c *codec.Codec, name string, r Rows, all func()) {
	if c.Writes() {
		r.list(c, name, all)
		return
	}
	l := list{Rows: r}
	if codec.Field(c, indexName(name), &l.index, (*index).read); l.rows == "" {
		all()
	} else {
		codec.Field(c, name, &l, (*list).read)
	}
}

// A list has the index of a list that is read, and the functions for its rows.
type list struct {
	index
	Rows
}

// read reads a list from its index, and skips its text.
func (l *list) read(c *codec.Codec) {
	in, at := c.Input()
	end := at
	if n := len(l.rows) - wordSize; n >= 0 && n%l.Digits == 0 {
		end += int(word(l.rows))
	}
	if end <= at || end > len(in) || in[at] != '[' || in[end-1] != ']' {
		c.Fail(errIndex)
		return
	}
	c.Seek(end)
	l.Read(l.rows[wordSize:])
}

// list writes a list. If the list is long, its index comes first.
func (r *Rows) list(c *codec.Codec, name string, all func()) {
	const few = 8
	if r.Len < few {
		all()
		return
	}
	x := newIndexer(c, name, wordSize+r.Digits*r.Len)
	from := len(c.Output()) + len(`,"`) + len(name) + len(`":`)
	all()
	rows := c.Output()[x.at:]
	putWord(rows, uint32(len(c.Output())-from))
	r.Write(rows[wordSize:])
}

// BlockDigits is the number of digits of a row for an IPv4 block and a time.
const BlockDigits = 4 * wordSize

// FitsBlock reports whether a block and a time fit into a row of BlockDigits. The zero time fits.
func FitsBlock(b netip.Prefix, t time.Time) bool {
	return b.Addr().Is4() && (t.IsZero() || uint64(t.Unix()-1) < 1<<33) // from 1970 to 2242
}

// WriteBlock writes a row for a block and a time. The row has the time as nanoseconds since 1970, or 0 for the zero
// time.
func WriteBlock(row []byte, b netip.Prefix, t time.Time) {
	a, n := b.Addr().As4(), int64(0)
	if !t.IsZero() {
		n = t.UnixNano()
	}
	for i, x := range [...]uint32{binary.BigEndian.Uint32(a[:]), uint32(b.Bits()), uint32(n >> 32), uint32(n)} {
		putWord(row[i*wordSize:], x)
	}
}

// ReadBlock reads what WriteBlock has written.
func ReadBlock(row string) (b netip.Prefix, t time.Time) {
	var x [BlockDigits / wordSize]uint32
	for i := range x {
		x[i] = word(row[i*wordSize:])
	}
	if n := int64(x[2])<<32 | int64(x[3]); n != 0 {
		t = time.Unix(0, n).UTC()
	}
	return netip.PrefixFrom(numbered(x[0]), int(x[1])), t
}
