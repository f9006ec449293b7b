// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"errors"
	"iter"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// Entries are a map by address that is read from a text and written again. A process uses
// one entry of thousands of bytes, and changes one. So an unchanged entry is written as its
// original text, and fields of a later release are not lost. With [ReadLate], a key and a value are
// parsed when they are used.
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
	key             netip.Addr // the zero Addr: not parsed yet
	from, value, to int        // offsets of the entry, its value and its end; to is 0 if the text is outdated
	known           *V         // nil: not parsed yet
}

// key returns the key of an entry.
func (e *Entries[V]) key(i int) netip.Addr {
	one := &e.all[i]
	if !one.key.IsValid() {
		one.key, _ = parseAddr(e.in[one.from+len(`"`) : one.value-len(`":`)])
	}
	return one.key
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
		for first := true; c.more(first, '{', '}'); first = false {
			if !c.late || !e.readLate(c) {
				e.read(c)
			}
		}
	})
}

// read reads an entry. It is appended, unless a person has changed the order in the file.
func (e *Entries[V]) read(c *Codec) {
	one := entry[V]{from: c.at}
	one.key = key(c, ByAddr)
	one.value, one.known = c.at, new(V)
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

// readLate reads an entry that Write has written, if it is as simple as most are: the key is an IPv4 address, or an IPv6
// address that begins with a digit, and the value an object without escapes. Without escapes, a string has no quotes. So
// if the first brace is in a string, or ends an object in the value, what follows is no such entry. Then reading fails.
func (e *Entries[V]) readLate(c *Codec) bool {
	const begin, middle = len(`"`), len(`":`)
	from, rest := c.at, c.in[c.at:]
	quote := begin + strings.IndexByte(rest[min(begin, len(rest)):], '"')
	end := strings.IndexByte(rest, '}') + 1
	if c.slash < from {
		c.slash = len(c.in)
		if n := strings.IndexByte(rest, '\\'); n >= 0 {
			c.slash = from + n
		}
	}
	simple := quote > begin && quote+middle < end && end < len(rest) && from+end < c.slash && rest[0] == '"' && rest[begin]-'0' <= 9 &&
		rest[quote+1] == ':' && rest[quote+middle] == '{' && (rest[end] == ',' || rest[end] == '}')
	if simple {
		e.all = append(e.all, entry[V]{from: from, value: from + quote + middle, to: from + end})
		c.at += end
	}
	return simple
}

// write writes the entries. Unchanged neighbours are copied together.
func (e *Entries[V]) write(c *Codec, kind func(*V, *Codec)) {
	for i := 0; i < len(e.all); i++ {
		first := &e.all[i]
		if first.to == 0 {
			writeEntry(c, ByAddr, &first.key, first.known, kind) // changed, so its key is parsed
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
	for end := len(e.all); i < end; {
		middle := int(uint(i+end) / 2)
		if e.key(middle).Less(k) {
			i = middle + 1
		} else {
			end = middle
		}
	}
	return i, i < len(e.all) && e.key(i) == k
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
		e.put(entry[V]{key: k, known: &v})
	}
}

// put inserts an entry at its place, or replaces the one with the same key.
func (e *Entries[V]) put(one entry[V]) {
	if n := len(e.all); n == 0 || e.key(n-1).Less(one.key) {
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
		k := e.key(i)
		if !f(i, k) {
			return
		}
		i = e.at(i, k) + 1
	}
}

// at returns the index of the entry that was at i, or that of the one before its place. A loop
// may have deleted it, or have set or deleted an entry before it.
func (e *Entries[V]) at(i int, k netip.Addr) int {
	if i < len(e.all) && e.key(i) == k {
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
	to := sort.Search(len(e.all)-from, func(i int) bool { return !b.Contains(e.key(from + i).WithZone("")) })
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
			if one.known == nil && !strings.HasPrefix(e.in[one.value:one.to], text) {
				continue
			}
			k := e.key(i)
			if !yield(k, e.ask(i)) {
				return
			}
			i = e.at(i, k)
		}
	}
}
