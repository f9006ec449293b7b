// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// Entries are a map by address that is read from a text and written again. A process uses
// one entry of thousands of bytes, and changes one. So an unchanged entry is written as its
// original text, and fields of a later release are not lost. With [ReadLate], a value is
// parsed when it is used, if there is an index.
//
// The zero Entries are empty. As with a map, entries may be set and deleted during a range
// loop: an entry that is deleted before its turn is not seen, an entry that is set may be
// seen, and none is seen twice. Even reading methods may parse a value, so they must not
// run concurrently.
type Entries[V comparable] struct {
	in   string // the text that all offsets refer to
	kind func(*V, *Codec)
	all  []entry[V] // in the order of the keys
}

type entry[V comparable] struct {
	key             netip.Addr
	rank            uint64 // see rankOf
	from, value, to int    // offsets of the entry, its value and its end; to is 0 if the text is outdated
	row             int    // offset of its row in the index; 0 if the text has none
	known           *V     // nil: not parsed yet
}

// Entered is a Table that is stored as Entries. Its values have no [KeptList].
func Entered[V comparable](c *Codec, name string, e *Entries[V], kind func(*V, *Codec)) {
	if c.Writes() {
		e.write(c, name, kind)
		return
	}
	var x index
	if c.begins(indexed(name)) {
		value(c, &x, (*index).describe)
	}
	if !c.begins(name) {
		return
	}
	value(c, e, func(e *Entries[V], c *Codec) {
		*e = Entries[V]{in: c.in, kind: kind}
		if c.late && x.rows != "" {
			e.readIndexed(c, x)
			return
		}
		for first := true; c.more(first, '{', '}'); first = false {
			e.read(c)
		}
	})
}

// read reads an entry. It is appended, unless a person has changed the order in the file.
func (e *Entries[V]) read(c *Codec) {
	from := c.at
	k := key(c, ByAddr)
	one := entry[V]{key: k, rank: rankOf(k), from: from, value: c.at, known: new(V)}
	if c.late {
		c.skip()
		e.parse(&one, c.at)
	} else if !c.word("null") {
		e.kind(one.known, c)
	} else if c.exact {
		c.Fail(errors.New("null")) // as for a member of an object
	}
	if one.to = c.at; c.err == nil {
		e.put(one)
	}
}

// readIndexed reads the entries by their index. A node has thousands, so it calls nothing more for an IPv4 address.
func (e *Entries[V]) readIndexed(c *Codec, x index) {
	const short = 2 * wordSize
	all := make([]entry[V], len(x.rows)/short) // or more than there are
	from, n := c.at, 0
	for i := 0; len(x.rows)-i >= short; n++ {
		one := &all[n]
		head := word(x.rows[i:])
		one.row = x.at + i
		if offset := int(head >> 20); offset < wide {
			number := word(x.rows[i+wordSize:])
			one.key, one.rank, one.value = numbered(number), uint64(number)+1, offset
			i += short
		} else {
			one.key, one.value = wideKey(x.rows[i+wordSize:]), offset-wide
			one.rank = rankOf(one.key)
			i += rowSize(one.key)
		}
		from++ // behind the brace or the comma
		one.from, one.to = from, from+int(head&mostEntry)
		one.value += from
		if !one.key.IsValid() || one.value >= one.to || one.to >= len(c.in) {
			c.Fail(errIndex)
			return
		}
		from = one.to
	}
	e.all = all[:n]
	if c.at = from; !c.next('}') {
		c.Fail(errIndex)
	}
}

// write writes the index and the entries.
func (e *Entries[V]) write(c *Codec, name string, kind func(*V, *Codec)) {
	var x indexer
	if n := e.indexSize(); n > 0 {
		x = newIndexer(c, indexed(name), n)
	}
	c.begins(name)
	c.Object(func() {
		for i := 0; i < len(e.all); {
			if e.all[i].to == 0 {
				e.writeChanged(c, i, &x, kind)
				i++
				continue
			}
			n := e.unchanged(i)
			e.copy(c, e.all[i:i+n], &x)
			i += n
		}
	})
}

// indexSize is how many characters the index takes. It is 0 if there is none: there are no entries, the key of one has a
// zone, or its text is too long for a row.
func (e *Entries[V]) indexSize() (n int) {
	for i := range e.all {
		one := &e.all[i]
		if one.key.Zone() != "" || one.to > 0 && (one.value-one.from > mostKey || one.to-one.from > mostEntry) {
			return 0
		}
		n += rowSize(one.key)
	}
	return n
}

// writeChanged writes an entry whose text is outdated.
func (e *Entries[V]) writeChanged(c *Codec, i int, x *indexer, kind func(*V, *Codec)) {
	one := &e.all[i]
	if !one.key.IsValid() {
		c.Fail(errors.New("an entry has no key"))
		return
	}
	c.comma()
	from := len(c.out)
	Addr(&one.key, c)
	c.out = append(c.out, ':')
	value := len(c.out)
	kind(one.known, c)
	x.add(c, row{one.key, value - from, len(c.out) - from})
}

// unchanged returns how many entries from i on are neighbours in the text, and unchanged.
func (e *Entries[V]) unchanged(i int) int {
	n := 1
	for ; i+n < len(e.all) && e.all[i+n].to > 0 && e.all[i+n].from == e.all[i+n-1].to+len(","); n++ {
	}
	return n
}

// copy writes neighbours in the text, and their rows.
func (e *Entries[V]) copy(c *Codec, all []entry[V], x *indexer) {
	first, last := &all[0], &all[len(all)-1]
	c.comma()
	c.copy(e.in[first.from:last.to])
	if first.row > 0 {
		x.copy(c, e.in[first.row:last.row+rowSize(last.key)])
		return
	}
	for i := range all {
		x.add(c, row{all[i].key, all[i].value - all[i].from, all[i].to - all[i].from})
	}
}

// rankOf is a number. Addresses with different ranks are in the order of their ranks. Different IPv6 addresses may have
// the same rank. To compare two numbers takes a fraction of the time of Compare.
func rankOf(k netip.Addr) uint64 {
	if k.Is4() {
		b := k.As4()
		return uint64(binary.BigEndian.Uint32(b[:])) + 1 // the zero Addr comes first
	}
	if !k.IsValid() {
		return 0
	}
	b := k.As16()
	return 1<<63 | binary.BigEndian.Uint64(b[:])>>1
}

// find returns the index of the entry, or the index where it would be.
func (e *Entries[V]) find(k netip.Addr) (i int, found bool) {
	rank := rankOf(k)
	for end := len(e.all); i < end; {
		middle := int(uint(i+end) / 2)
		if one := &e.all[middle]; one.rank < rank || one.rank == rank && one.key.Less(k) {
			i = middle + 1
		} else {
			end = middle
		}
	}
	return i, i < len(e.all) && e.all[i].key == k
}

// ask returns the value of an entry.
func (e *Entries[V]) ask(i int) V {
	one := &e.all[i]
	if one.known == nil {
		one.known = new(V)
		e.parse(one, one.to)
	}
	return *one.known
}

// parse parses the value of an entry, whose text ends there. A value that cannot be parsed is the zero value:
// [Read] has returned an error for it, and ReadLate never gets one.
func (e *Entries[V]) parse(one *entry[V], end int) {
	c := Codec{in: e.in[:end], at: one.value}
	if !c.word("null") {
		e.kind(one.known, &c)
	}
	if c.err != nil {
		*one.known = *new(V)
	}
}

// Renew has those entries written again whose text is stale. What is not described in them is lost.
func (e *Entries[V]) Renew(stale func(text string, v V) bool) {
	for i := range e.all {
		one := &e.all[i]
		if one.to > 0 && stale(e.in[one.value:one.to], e.ask(i)) {
			one.to = 0
		}
	}
}

// Len is the number of entries.
func (e *Entries[V]) Len() int { return len(e.all) }

// At returns the value of the entry, and whether there is one.
func (e *Entries[V]) At(k netip.Addr) (v V, ok bool) {
	i, ok := e.find(k)
	if ok {
		v = e.ask(i)
	}
	return v, ok
}

// Has reports whether there is such an entry.
func (e *Entries[V]) Has(k netip.Addr) bool {
	_, found := e.find(k)
	return found
}

// Set sets an entry.
func (e *Entries[V]) Set(k netip.Addr, v V) {
	if old, ok := e.At(k); !ok || old != v {
		e.put(entry[V]{key: k, rank: rankOf(k), known: &v})
	}
}

// put inserts an entry at its place, or replaces the one with the same key.
func (e *Entries[V]) put(one entry[V]) {
	if n := len(e.all); n == 0 || e.all[n-1].key.Less(one.key) {
		e.all = append(e.all, one)
		return
	}
	i, found := e.find(one.key)
	if !found {
		e.all = append(e.all, one) // slices.Insert would add 5 kB to each program
		copy(e.all[i+1:], e.all[i:])
	}
	e.all[i] = one
}

// Delete deletes the entry, if there is one.
func (e *Entries[V]) Delete(k netip.Addr) {
	if i, found := e.find(k); found {
		e.all = slices.Delete(e.all, i, i+1)
	}
}

// each calls f for the entries from i on, until f returns false.
func (e *Entries[V]) each(i int, f func(i int, k netip.Addr) bool) {
	for i < len(e.all) {
		k := e.all[i].key
		if !f(i, k) {
			return
		}
		i = e.at(i, k) + 1
	}
}

// at returns the index of the entry that was at i, or that of the one before its place. A loop
// may have deleted it, or have set or deleted an entry before it.
func (e *Entries[V]) at(i int, k netip.Addr) int {
	if i < len(e.all) && e.all[i].key == k {
		return i
	}
	i, found := e.find(k)
	if !found {
		i--
	}
	return i
}

// Keys iterates over the keys, in order.
func (e *Entries[V]) Keys() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		e.each(0, func(_ int, k netip.Addr) bool { return yield(k) })
	}
}

// Within iterates over the keys in a block, of any zone, in order.
func (e *Entries[V]) Within(b netip.Prefix) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		i, _ := e.find(b.Masked().Addr())
		e.each(i, func(_ int, k netip.Addr) bool { return b.Contains(k.WithZone("")) && yield(k) })
	}
}

// Count counts the entries in a block.
func (e *Entries[V]) Count(b netip.Prefix) int {
	from, _ := e.find(b.Masked().Addr())
	n := len(e.all) - from
	if b.Addr().Is4() {
		n = min(n, 1<<(32-b.Bits())) // which is few of the node's
	}
	return sort.Search(n, func(i int) bool { return !b.Contains(e.all[from+i].key.WithZone("")) })
}

// All iterates over the entries, in order.
func (e *Entries[V]) All() iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		e.each(0, func(i int, k netip.Addr) bool { return yield(k, e.ask(i)) })
	}
}

// Beginning iterates, in order, over the entries whose value begins with the text, as Write
// writes it, and over some others. It parses as few other entries as possible. The values of a node begin and end alike, so
// the middle of the text is compared first.
func (e *Entries[V]) Beginning(text string) iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		middle := min(len(text)/2, len(text)-8)
		begins := func(value string) bool {
			return len(value) >= len(text) && (middle < 0 || eight(value[middle:]) == eight(text[middle:])) && strings.HasPrefix(value, text)
		}
		for i := 0; i < len(e.all); i++ {
			one := &e.all[i]
			if one.known == nil && !begins(e.in[one.value:one.to]) {
				continue
			}
			k := one.key
			if !yield(k, e.ask(i)) {
				return
			}
			i = e.at(i, k)
		}
	}
}
