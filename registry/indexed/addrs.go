// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// Rows describe the index of a list. The index has a row of Digits hexadecimal digits for each element of the list.
type Rows struct {
	Digits int
	Len    int // how many rows to write; 0 if an element does not fit into a row: the list then gets no index
	Write  func(rows []byte)
	Read   func(rows string)
}

// Addrs describes a member that is a list of addresses. A long list has an index: see List.
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
		// the loop has this form so that the compiler adds only one bounds check
		for n, i := 0, 0; n < len(all) && i <= len(rows)-wordSize; n, i = n+1, i+wordSize {
			all[n] = addrFromNumber(parseDigits(eightBytes(rows[i:])))
		}
		*v = all
	}
	List(c, name, r, func() { codec.List(c, name, v, codec.Addr) })
}

// List describes a member that is a list. A long list has an index, which precedes the list. The index has eight
// hexadecimal digits for the length of the list's text, and then the rows. The function describeList describes the list
// without an index.
func List(c *codec.Codec, name string, r Rows, describeList func()) {
	if c.Writes() {
		r.writeList(c, name, describeList)
		return
	}
	l := indexedList{Rows: r}
	if codec.Field(c, indexName(name), &l.index, (*index).readIndex); l.rows == "" {
		describeList()
	} else {
		codec.Field(c, name, &l, (*indexedList).readFromIndex)
	}
}

// An indexedList is a list that a codec reads from the list's index.
type indexedList struct {
	index
	Rows
}

// readFromIndex reads the elements from the index, and skips the text of the list.
func (l *indexedList) readFromIndex(c *codec.Codec) {
	in, at := c.Input()
	end := at
	if n := len(l.rows) - wordSize; n >= 0 && n%l.Digits == 0 {
		end += int(parseWord(l.rows))
	}
	if end <= at || end > len(in) || in[at] != '[' || in[end-1] != ']' {
		c.Fail(errIndex)
		return
	}
	c.Seek(end)
	l.Read(l.rows[wordSize:])
}

// writeList writes a list. If the list is long, writeList first writes the list's index.
func (r *Rows) writeList(c *codec.Codec, name string, describeList func()) {
	const few = 8
	if r.Len < few {
		describeList()
		return
	}
	x := newIndexer(c, name, wordSize+r.Digits*r.Len)
	from := len(c.Output()) + len(`,"`) + len(name) + len(`":`)
	describeList()
	rows := c.Output()[x.offset:]
	putWord(rows, uint32(len(c.Output())-from))
	r.Write(rows[wordSize:])
}

// BlockDigits is the number of digits of a row that has an IPv4 block and a time.
const BlockDigits = 4 * wordSize

// FitsBlock reports whether a block and a time fit into a row of BlockDigits digits. The zero time fits.
func FitsBlock(b netip.Prefix, t time.Time) bool {
	return b.Addr().Is4() && (t.IsZero() || uint64(t.Unix()-1) < 1<<33) // from 1970 to 2242
}

// WriteBlock writes a row for a block and a time. The time is in nanoseconds since 1970, and 0 is the zero time.
func WriteBlock(row []byte, b netip.Prefix, t time.Time) {
	a, n := b.Addr().As4(), int64(0)
	if !t.IsZero() {
		n = t.UnixNano()
	}
	for i, x := range [...]uint32{binary.BigEndian.Uint32(a[:]), uint32(b.Bits()), uint32(n >> 32), uint32(n)} {
		putWord(row[i*wordSize:], x)
	}
}

// ReadBlock reads a row that WriteBlock has written.
func ReadBlock(row string) (b netip.Prefix, t time.Time) {
	var x [BlockDigits / wordSize]uint32
	for i := range x {
		x[i] = parseWord(row[i*wordSize:])
	}
	if n := int64(x[2])<<32 | int64(x[3]); n != 0 {
		t = time.Unix(0, n).UTC()
	}
	return netip.PrefixFrom(addrFromNumber(x[0]), int(x[1])), t
}
