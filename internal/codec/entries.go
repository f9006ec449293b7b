// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// Entries are a map by address that is read from a text and written again. A process uses
// one entry of thousands of bytes, and changes one. So an unchanged entry is written as its
// original text, and fields of a later release are not lost. With [ReadLate], a value is
// parsed when it is used.
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
	rank            uint64
	from, value, to int  // offsets of the entry, its value and its end; to is 0 if the text is outdated
	known           *V   // nil: not parsed yet
	odd             bool // not parsed, and its text may have escapes
}

// rank orders addresses as netip does, except IPv6 addresses that are close together.
func rank(a netip.Addr) uint64 {
	if a.Is4() {
		b := a.As4()
		return uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return 1<<63 | binary.BigEndian.Uint64(b[:])>>1
}

// before reports whether the entry is before one with this rank and key.
func (one *entry[V]) before(r uint64, k netip.Addr) bool {
	return one.rank < r || one.rank == r && one.key.Less(k)
}

// Entered is a Table that is stored as Entries.
func Entered[V comparable](c *Codec, name string, e *Entries[V], kind func(*V, *Codec)) {
	const length = 256 // about that of an entry: a guess avoids growing ten times
	if !c.begins(name) {
		return
	}
	value(c, e, func(e *Entries[V], c *Codec) {
		if c.Writes() {
			c.Object(func() { e.write(c, kind) })
			return
		}
		*e = Entries[V]{c.in, kind, make([]entry[V], 0, (len(c.in)-c.at)/length)}
		c.Object(func() { e.read(c) })
	})
}

// read reads an entry. It is appended, unless a person has changed the order in the file.
func (e *Entries[V]) read(c *Codec) {
	one := entry[V]{from: c.at}
	if c.late {
		one.key = c.lateKey()
	} else {
		one.key = key(c, ByAddr)
	}
	one.rank, one.value = rank(one.key), c.at
	if c.late {
		one.odd = !c.skipLate()
		c.member(false)
	} else {
		one.known = new(V)
		member(c, one.known, e.kind)
	}
	if one.to = c.at - 1; c.err == nil { // without the comma, or the brace that ends the table
		e.put(one)
	}
}

// lateKey reads a key that Write has written. What is none makes the text unreadable.
func (c *Codec) lateKey() netip.Addr {
	name := c.in[min(c.at+1, len(c.in)):]
	n := max(strings.IndexByte(name, '"'), 0)
	a, err := parseAddr(name[:n])
	if err != nil {
		return key(c, ByAddr) // a zone may have escapes
	}
	if c.at += 1 + n + 1; !c.next(':') {
		c.Fail(fmt.Errorf("want a colon after %q", name[:n]))
	}
	return a
}

// skipLate skips a value that Write has written. Without escapes, a string has no quotes. So if
// the first brace is in a string and not the end of the object, the text from there on cannot
// be read as members, and reading fails. It reports whether the value was as simple as that.
func (c *Codec) skipLate() (simple bool) {
	end := c.at + strings.IndexByte(c.in[c.at:], '}') + 1
	if c.slash < c.at {
		c.slash = len(c.in)
		if n := strings.IndexByte(c.in[c.at:], '\\'); n >= 0 {
			c.slash = c.at + n
		}
	}
	simple = end > c.at && end < c.slash && end < len(c.in) && (c.in[end] == ',' || c.in[end] == '}')
	if simple {
		c.at = end
	} else {
		c.skip()
	}
	return simple
}

// write writes the entries. Unchanged neighbours are copied together.
func (e *Entries[V]) write(c *Codec, kind func(*V, *Codec)) {
	for i := 0; i < len(e.all); i++ {
		first := &e.all[i]
		if first.to == 0 {
			writeEntry(c, ByAddr, &first.key, first.known, kind)
			continue
		}
		c.comma()
		for i+1 < len(e.all) && e.all[i+1].to > 0 && e.all[i+1].from == e.all[i].to+len(",") {
			i++
		}
		c.out = append(c.out, e.in[first.from:e.all[i].to]...)
	}
}

// find returns the index of the entry, or the index where it would be.
func (e *Entries[V]) find(k netip.Addr) (i int, found bool) {
	r := rank(k)
	for end := len(e.all); i < end; {
		middle := int(uint(i+end) / 2)
		if e.all[middle].before(r, k) {
			i = middle + 1
		} else {
			end = middle
		}
	}
	return i, i < len(e.all) && e.all[i].key == k
}

// ask returns the value of an entry. A value that cannot be parsed is the zero value:
// [Read] has returned an error for it, and ReadLate never gets one.
func (e *Entries[V]) ask(i int) V {
	one := &e.all[i]
	if one.known == nil {
		one.known = new(V)
		c := Codec{in: e.in[:one.to], at: one.value}
		if !c.word("null") {
			e.kind(one.known, &c)
		}
		if c.err != nil {
			*one.known = *new(V)
		}
	}
	return *one.known
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
		e.put(entry[V]{key: k, rank: rank(k), known: &v})
	}
}

// put inserts an entry at its place, or replaces the one with the same key.
func (e *Entries[V]) put(one entry[V]) {
	if n := len(e.all); n == 0 || e.all[n-1].before(one.rank, one.key) {
		e.all = append(e.all, one)
		return
	}
	i, found := e.find(one.key)
	if !found {
		e.all = slices.Insert(e.all, i, one)
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
	to := sort.Search(len(e.all)-from, func(i int) bool { return !b.Contains(e.all[from+i].key.WithZone("")) })
	return to
}

// All iterates over the entries, in order.
func (e *Entries[V]) All() iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		e.each(0, func(i int, k netip.Addr) bool { return yield(k, e.ask(i)) })
	}
}

// Beginning iterates, in order, over the entries whose value begins with the text, as Write
// writes it, and over some others. It parses as few other entries as possible.
func (e *Entries[V]) Beginning(text string) iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		for i := 0; i < len(e.all); i++ {
			one := &e.all[i]
			if one.known == nil && !one.odd && !strings.HasPrefix(e.in[one.value:one.to], text) {
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
