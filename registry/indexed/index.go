// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// Before Entries, [codec.Write] writes their index, as a member of its own. The index has a row for each entry. So a
// process that uses a few of thousands of entries need not search the text for the beginning of each entry. A row is
//
//	offset of the value in the entry, 3 digits | length of the entry, 5 digits | key, 8 or 32 digits
//
// in hexadecimal. Most keys are IPv4 addresses, and they come first. In the row of an IPv6 address, [wide] is added to
// the offset.
//
// Only [codec.ReadTrusted] uses an index, and does not check the index. [codec.Read] ignores the index, because an
// index may be wrong after an edit by a person.

// indexName is the name of the member that has the index of a member.
func indexName(name string) string { return name + "Index" }

// A row is the row of one entry.
type row struct {
	key           netip.Addr
	value, length int
}

const (
	wordSize  = 8            // hexadecimal digits of a number
	wide      = 1 << 11      // added to the offset if the key is an IPv6 address
	mostKey   = wide - 1     // the largest offset of a value
	mostEntry = 1<<(4*5) - 1 // the largest length of an entry
)

var errIndex = errors.New("the index is wrong")

// rowSize returns the number of digits of a key's row.
func rowSize(key netip.Addr) int { return wordSize + key.BitLen()/4 }

// write writes the row to the beginning of text.
func (r row) write(text []byte) {
	if r.key.Is4() {
		b := r.key.As4()
		putWord(text, uint32(r.value<<20|r.length))
		putWord(text[wordSize:], binary.BigEndian.Uint32(b[:]))
		return
	}
	putWord(text, uint32((wide|r.value)<<20|r.length))
	b := r.key.As16()
	for i := 0; i < len(b); i += 4 {
		putWord(text[wordSize+2*i:], binary.BigEndian.Uint32(b[i:]))
	}
}

// wideKey returns the IPv6 address from the first 32 digits of text. If text is shorter, wideKey returns the zero Addr.
func wideKey(text string) netip.Addr {
	var b [16]byte
	if len(text) < 2*len(b) {
		return netip.Addr{}
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], word(text[2*i:]))
	}
	return netip.AddrFrom16(b)
}

// isWide reports whether the row at the beginning of text is the row of an IPv6 address, with [wide] in its offset.
// isWide converts only the first digit, like number.
func isWide(text string) bool { return (text[0]&15+text[0]>>6&1*9)&8 != 0 }

// rowKey returns the key of the row at the beginning of text.
func rowKey(text string) netip.Addr {
	if !isWide(text) {
		return numbered(number(eight(text[wordSize:])))
	}
	return wideKey(text[wordSize:])
}

// rowRank returns the rank of the key of the row at the beginning of text.
func rowRank(text string) uint64 {
	if !isWide(text) {
		return uint64(number(eight(text[wordSize:]))) + 1
	}
	return wideRank(uint64(word(text[wordSize:]))<<32 | uint64(word(text[2*wordSize:])))
}

// numbered returns the IPv4 address with this number.
func numbered(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// word returns the number from the first eight digits of s. It converts all eight digits at once, because a node has
// thousands of numbers.
func word(s string) uint32 { return number(eight(s)) }

// number returns the number from eight digits, which are the bytes of x.
func number(x uint64) uint32 {
	x = x&0x0f0f0f0f0f0f0f0f + 9*(x>>6&0x0101010101010101) // bit 6 is set in a letter
	x = (x | x>>4) & 0x00ff00ff00ff00ff
	x = (x | x>>8) & 0x0000ffff0000ffff
	return uint32(x | x>>16)
}

// eight returns the first eight bytes as a number, by one instruction.
func eight(s string) uint64 {
	_ = s[7]
	return uint64(s[7]) | uint64(s[6])<<8 | uint64(s[5])<<16 | uint64(s[4])<<24 |
		uint64(s[3])<<32 | uint64(s[2])<<40 | uint64(s[1])<<48 | uint64(s[0])<<56
}

// putWord writes a number as eight digits.
func putWord(text []byte, n uint32) {
	x := uint64(n)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
	letters := (x + 0x0606060606060606) >> 4 & 0x0101010101010101
	binary.BigEndian.PutUint64(text, x+'0'*0x0101010101010101+letters*('a'-'0'-10))
}

// An index has the text of all rows, and the offset of this text in the text that the codec reads.
type index struct {
	rows string
	at   int
}

// read reads the index from a trusted text. In another text, it skips the index.
func (x *index) read(c *codec.Codec) {
	if !c.Trusted() {
		var raw json.RawMessage
		if codec.Raw(&raw, c); !json.Valid(raw) {
			c.Fail(errIndex)
		}
		return
	}
	in, at := c.Input()
	if !strings.HasPrefix(in[at:], `"`) {
		c.Fail(errIndex)
		return
	}
	x.at = at + len(`"`)
	x.rows = in[x.at : x.at+max(strings.IndexByte(in[x.at:], '"'), 0)]
	c.Seek(x.at + len(x.rows) + len(`"`))
}

// An indexer writes rows into the room that newIndexer has reserved. The zero indexer writes nothing.
type indexer struct{ at int }

// newIndexer writes a member with room for this number of digits. If the number is 0, newIndexer writes nothing.
func newIndexer(c *codec.Codec, name string, digits int) (x indexer) {
	if digits == 0 {
		return x
	}
	codec.Field(c, indexName(name), &x, func(x *indexer, c *codec.Codec) {
		c.Copy(`"`)
		x.at = len(c.Output())
		c.Reserve(digits)
		c.Copy(`"`)
	})
	return x
}

func (x *indexer) add(c *codec.Codec, r row) {
	if x.at == 0 {
		return
	}
	if r.length > mostEntry {
		c.Fail(fmt.Errorf("%s: its entry is too long", r.key))
	}
	r.write(c.Output()[x.at:])
	x.at += rowSize(r.key)
}

// copy writes rows that were read.
func (x *indexer) copy(c *codec.Codec, rows string) {
	if x.at > 0 {
		x.at += copy(c.Output()[x.at:], rows)
	}
}
