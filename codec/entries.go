// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
)

// Entries are a map by address that is read from a text and written again: of thousands
// of bytes a process asks for one entry, and changes one. An entry whose value is still
// what it was is written as it stood, so nothing is lost of what a later release has put
// there; and if [ReadLate] reads the text, a value is read when it is asked for.
//
// The zero Entries are empty. As with a map, entries may be set and deleted while one
// ranges over them: one that is deleted before its turn is not seen, one that is set may
// be, and none is seen twice. As a question may read a value, not even two that only ask
// may do so at once.
type Entries[V comparable] struct {
	in   string // the text, in which all offsets are
	kind func(*V, *Codec)
	all  []entry[V] // in the order of the keys
}

type entry[V comparable] struct {
	key             netip.Addr
	rank            uint64
	from, value, to int // it stands there, from its key on; to is 0 if it is no longer what stands there
	known           *V  // nil: not asked for yet
}

// rank orders addresses as netip does, but for those of IPv6 that are close together.
func rank(a netip.Addr) uint64 {
	if a.Is4() {
		b := a.As4()
		return uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return 1<<63 | binary.BigEndian.Uint64(b[:])>>1
}

// before tells whether an entry stands before that of another key and its rank.
func (one *entry[V]) before(r uint64, k netip.Addr) bool {
	return one.rank < r || one.rank == r && one.key.Less(k)
}

// Entered is a Table that is Entries.
func Entered[V comparable](c *Codec, name string, e *Entries[V], kind func(*V, *Codec)) {
	const length = 256 // of an entry, about: a guess is better than to grow ten times
	Field(c, name, e, func(e *Entries[V], c *Codec) {
		if c.Writes() {
			c.Object(func() { e.write(c, kind) })
			return
		}
		*e = Entries[V]{c.in, kind, make([]entry[V], 0, (len(c.in)-c.at)/length)}
		c.Object(func() { e.read(c) })
	})
}

// read reads an entry. It is put behind the others, unless a person has edited the file.
func (e *Entries[V]) read(c *Codec) {
	one := entry[V]{from: c.at}
	one.key = key(c, ByAddr)
	one.rank, one.value = rank(one.key), c.at
	if c.late {
		c.skip()
		c.member(false)
	} else {
		one.known = new(V)
		member(c, one.known, e.kind)
	}
	if one.to = c.at - 1; c.err == nil { // but for the comma, or the brace that ends the table
		e.put(one)
	}
}

// write writes the entries. Those that stood one behind the other are copied together.
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

// find is where the entry is, or would be.
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

// ask is the value of an entry. What cannot be read is the zero value: [Read] has an
// error for that, and ReadLate never meets it.
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

// At is the value of the entry, and whether there is one.
func (e *Entries[V]) At(k netip.Addr) (v V, ok bool) {
	i, ok := e.find(k)
	if ok {
		v = e.ask(i)
	}
	return v, ok
}

// Has tells whether there is such an entry.
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

// put puts an entry where it belongs, in place of one with the same key.
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

// Delete deletes an entry, if there is such a one.
func (e *Entries[V]) Delete(k netip.Addr) {
	if i, found := e.find(k); found {
		e.all = slices.Delete(e.all, i, i+1)
	}
}

// each calls f with where the entries are, from i on, until it is false.
func (e *Entries[V]) each(i int, f func(i int, k netip.Addr) bool) {
	for i < len(e.all) {
		k := e.all[i].key
		if !f(i, k) {
			return
		}
		if i >= len(e.all) || e.all[i].key != k { // it was deleted, or another one before it set or deleted
			i, _ = e.find(k)
		}
		if i < len(e.all) && e.all[i].key == k {
			i++
		}
	}
}

// Keys are the keys, in order.
func (e *Entries[V]) Keys() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		e.each(0, func(_ int, k netip.Addr) bool { return yield(k) })
	}
}

// Within are the keys in a block, of whatever zone, in order.
func (e *Entries[V]) Within(b netip.Prefix) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		i, _ := e.find(b.Masked().Addr())
		e.each(i, func(_ int, k netip.Addr) bool { return b.Contains(k.WithZone("")) && yield(k) })
	}
}

// All are the entries, in order.
func (e *Entries[V]) All() iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		e.each(0, func(i int, k netip.Addr) bool { return yield(k, e.ask(i)) })
	}
}

// Naming are, in order, the entries with a string that contains the text, and some
// others: those without are passed over unread as far as possible.
func (e *Entries[V]) Naming(text string) iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		n := newNeedle(text)
		e.each(0, func(i int, k netip.Addr) bool {
			one := &e.all[i]
			may := one.known != nil || n.mayBeIn(e.in[one.value:one.to])
			return !may || yield(k, e.ask(i))
		})
	}
}
