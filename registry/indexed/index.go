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

// [codec.Write] writes two members for a value of the type Entries: first an index, and then the entries. The index has
// a row for each entry, so that a process finds an entry and need not read the others. A row consists of hexadecimal
// digits:
//
//	offset of the value in the entry, 3 digits | length of the entry, 5 digits | key, 8 or 32 digits
//
// The keys are sorted, so rows of IPv4 addresses come first. For an IPv6 address, the bit wideFlag of the offset is
// set.
//
// [codec.ReadTrusted] does not check the index. [codec.Read] ignores it, because a person may have edited the text.

func indexName(name string) string { return name + "Index" }

// A row has the decoded values of one row of an index.
type row struct {
	key           netip.Addr
	value, length int
}

const (
	wordSize       = 8            // hexadecimal digits of a uint32
	wideFlag       = 1 << 11      // set in the offset if the key is an IPv6 address
	maxValueOffset = wideFlag - 1 // the largest offset of a value
	maxEntrySize   = 1<<(4*5) - 1 // the largest length of an entry
)

var errIndex = errors.New("the index is wrong")

// rowSize returns the number of digits of the row of an entry with this key.
func rowSize(key netip.Addr) int { return wordSize + key.BitLen()/4 }

// putRow overwrites the first bytes of the slice with the digits of the row.
func (r row) putRow(text []byte) {
	if r.key.Is4() {
		b := r.key.As4()
		putWord(text, uint32(r.value<<20|r.length))
		putWord(text[wordSize:], binary.BigEndian.Uint32(b[:]))
		return
	}
	putWord(text, uint32((wideFlag|r.value)<<20|r.length))
	b := r.key.As16()
	for i := 0; i < len(b); i += 4 {
		putWord(text[wordSize+2*i:], binary.BigEndian.Uint32(b[i:]))
	}
}

// wideKey converts the first 32 digits of a text to an IPv6 address. If the text is shorter, wideKey returns the zero
// Addr.
func wideKey(text string) netip.Addr {
	var b [16]byte
	if len(text) < 2*len(b) {
		return netip.Addr{}
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], parseWord(text[2*i:]))
	}
	return netip.AddrFrom16(b)
}

// isWide reports whether the row at the beginning of text is the row of an IPv6 address. The bit wideFlag is in the
// first digit of the row. isWide converts this digit with the formula of parseDigits.
func isWide(text string) bool { return (text[0]&15+text[0]>>6&1*9)&8 != 0 }

// rowKey returns the key in the row at the beginning of text.
func rowKey(text string) netip.Addr {
	if !isWide(text) {
		return addrFromNumber(parseDigits(eightBytes(text[wordSize:])))
	}
	return wideKey(text[wordSize:])
}

// rowRank returns the rank of the key in the row at the beginning of text.
func rowRank(text string) uint64 {
	if !isWide(text) {
		return uint64(parseDigits(eightBytes(text[wordSize:]))) + 1
	}
	return wideRank(uint64(parseWord(text[wordSize:]))<<32 | uint64(parseWord(text[2*wordSize:])))
}

func addrFromNumber(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// parseWord converts the first eight hexadecimal digits of s to a number.
func parseWord(s string) uint32 { return parseDigits(eightBytes(s)) }

// parseDigits converts eight hexadecimal digits to a number. The eight bytes of the argument x are these digits.
func parseDigits(x uint64) uint32 {
	x = x&0x0f0f0f0f0f0f0f0f + 9*(x>>6&0x0101010101010101) // bit 6 is set in a letter
	x = (x | x>>4) & 0x00ff00ff00ff00ff
	x = (x | x>>8) & 0x0000ffff0000ffff
	return uint32(x | x>>16)
}

// eightBytes returns the first eight bytes of s as a number. The compiler turns this function into one load
// instruction.
func eightBytes(s string) uint64 {
	_ = s[7]
	return uint64(s[7]) | uint64(s[6])<<8 | uint64(s[5])<<16 | uint64(s[4])<<24 |
		uint64(s[3])<<32 | uint64(s[2])<<40 | uint64(s[1])<<48 | uint64(s[0])<<56
}

// putWord overwrites the first eight bytes of the slice with the eight hexadecimal digits of n.
func putWord(text []byte, n uint32) {
	x := uint64(n)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
	letters := (x + 0x0606060606060606) >> 4 & 0x0101010101010101
	binary.BigEndian.PutUint64(text, x+'0'*0x0101010101010101+letters*('a'-'0'-10))
}

// An index has the text of all rows of one index, and the offset of this text in the codec's input.
type index struct {
	rows   string
	offset int
}

// readIndex reads the index of a trusted text. It skips the index of any other text.
func (x *index) readIndex(c *codec.Codec) {
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
	x.offset = at + len(`"`)
	x.rows = in[x.offset : x.offset+max(strings.IndexByte(in[x.offset:], '"'), 0)]
	c.Seek(x.offset + len(x.rows) + len(`"`))
}

// An indexer writes rows into the space that newIndexer has reserved. The zero indexer writes nothing.
type indexer struct{ offset int }

// newIndexer reserves space for the index of the member with this name. The argument digits is the size of this space.
// If digits is 0, newIndexer writes nothing.
func newIndexer(c *codec.Codec, name string, digits int) (x indexer) {
	if digits == 0 {
		return x
	}
	codec.Field(c, indexName(name), &x, func(x *indexer, c *codec.Codec) {
		c.Copy(`"`)
		x.offset = len(c.Output())
		c.Reserve(digits)
		c.Copy(`"`)
	})
	return x
}

func (x *indexer) addRow(c *codec.Codec, r row) {
	if x.offset == 0 {
		return
	}
	if r.length > maxEntrySize {
		c.Fail(fmt.Errorf("%s: its entry is too long", r.key))
	}
	r.putRow(c.Output()[x.offset:])
	x.offset += rowSize(r.key)
}

// copyRows writes rows that a caller has read from the index of the original text.
func (x *indexer) copyRows(c *codec.Codec, rows string) {
	if x.offset > 0 {
		x.offset += copy(c.Output()[x.offset:], rows)
	}
}
