// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// Entries are a map from addresses to values. A process reads the map from a text, and writes it again. Usually the
// process uses one of thousands of entries, and changes one entry. So it writes an unchanged entry as the entry's
// original text, and fields of a later release are not lost. If [codec.ReadTrusted] reads a text with an index, a value
// is parsed only when it is used.
//
// The zero Entries are empty. As with a map, a caller may set and delete entries during a range loop. The loop does not
// see an entry that is deleted before its turn. The loop may see an entry that is set meanwhile, and sees no entry
// twice. Even methods that only read may parse a value, so goroutines must not call them concurrently.
type Entries[V comparable] struct {
	entries
	kind   func(*V, *codec.Codec)
	values *[]*V // the values of the known entries
}

// entries are the part of Entries that does not depend on the type of the values.
type entries struct {
	in    string        // the text that all offsets refer to
	all   []entry       // in the order of the keys
	keys  *[]netip.Addr // the keys of the known entries; a copy of the Entries shares them, like the slice all
	moves int           // how often a change has moved entries to other indices of the slice all
	// the index where find looks first: after the last result, because many callers look for the keys in order
	next int
}

// An entry is small and has no pointers, because a node has thousands of entries. If an entry is not known (parsed),
// its key is in its row of the index.
type entry struct {
	from, value, to int32 // offsets of the entry, its value and its end; to is 0 if the text is outdated
	row             int32 // offset of its row in the index; 0 if the text has none
	known           int32 // the number of its key and its value, beginning with 1; 0: not parsed yet
}

// key is the key of an entry.
func (e *entries) key(one *entry) netip.Addr {
	if one.known > 0 {
		return (*e.keys)[one.known-1]
	}
	return rowKey(e.in[one.row:])
}

// rank is the rank of the entry's key: see rankOf.
func (e *entries) rank(one *entry) uint64 {
	if one.known > 0 {
		return rankOf((*e.keys)[one.known-1])
	}
	return rowRank(e.in[one.row:])
}

// know adds a key and its value to the known entries, and returns their number.
func (e *Entries[V]) know(k netip.Addr, v *V) int32 {
	if e.keys == nil {
		e.keys, e.values = new([]netip.Addr), new([]*V)
	}
	*e.keys, *e.values = append(*e.keys, k), append(*e.values, v)
	return int32(len(*e.values))
}

// Entered describes a member like [codec.Table], with Entries instead of a map.
func Entered[V comparable](c *codec.Codec, name string, e *Entries[V], kind func(*V, *codec.Codec)) {
	if c.Writes() {
		e.write(c, name, kind)
		return
	}
	var x index
	codec.Field(c, indexName(name), &x, (*index).read)
	codec.Field(c, name, e, func(e *Entries[V], c *codec.Codec) { e.read(c, x, kind) })
}

func (e *Entries[V]) read(c *codec.Codec, x index, kind func(*V, *codec.Codec)) {
	in, _ := c.Input()
	*e = Entries[V]{entries: entries{in: in, keys: new([]netip.Addr)}, kind: kind, values: new([]*V)}
	if len(in) > math.MaxInt32 {
		c.Fail(errors.New("the text is too long"))
	}
	if c.Trusted() && x.rows != "" {
		e.readIndexed(c, x)
		return
	}
	codec.ReadEntries(c, codec.ByAddr, func(k netip.Addr, from int) {
		v := new(V)
		_, value := c.Input()
		codec.Content(c, v, kind)
		_, to := c.Input()
		e.put(k, entry{from: int32(from), value: int32(value), to: int32(to), known: e.know(k, v)})
	})
}

// readIndexed reads the entries by their index. To be fast, readIndexed parses no key. For each entry, it calls only
// functions that the compiler inlines.
func (e *entries) readIndexed(c *codec.Codec, x index) {
	const more = 4                                      // room for new entries, so that Set need not copy the slice
	all := make([]entry, len(x.rows)/(2*wordSize)+more) // enough: IPv4 has the shortest rows
	in, from := c.Input()
	n := 0
	for i := 0; i <= len(x.rows)-2*wordSize; n++ {
		head := number(eight(x.rows[i:]))
		one := &all[n]
		one.row = int32(x.at + i)
		offset := int(head >> 20)
		i += 2 * wordSize
		if offset >= wide {
			offset -= wide
			i += 3 * wordSize
		}
		from++ // after the brace or the comma
		end := from + int(head&mostEntry)
		one.from, one.value, one.to = int32(from), int32(from+offset), int32(end)
		if from+offset >= end || end >= len(in) || i > len(x.rows) {
			c.Fail(errIndex)
			return
		}
		from = end
	}
	e.all = all[:n]
	if !strings.HasPrefix(in[from:], "}") {
		c.Fail(errIndex)
		return
	}
	c.Seek(from + 1)
}

// write writes the index and the entries.
func (e *Entries[V]) write(c *codec.Codec, name string, kind func(*V, *codec.Codec)) {
	runs := e.runs()
	x := newIndexer(c, name, e.indexSize(runs))
	codec.Field(c, name, e, func(e *Entries[V], c *codec.Codec) {
		c.Object(func() {
			for _, run := range runs {
				if run[0].to > 0 {
					e.copy(c, run, &x)
				} else {
					e.writeNew(c, &run[0], &x, kind)
				}
			}
		})
	})
}

// writeNew writes an entry whose text is outdated, and its row.
func (e *Entries[V]) writeNew(c *codec.Codec, one *entry, x *indexer, kind func(*V, *codec.Codec)) {
	k := e.key(one)
	if !k.IsValid() {
		c.Fail(errors.New("an entry has no key"))
	}
	c.Comma()
	from := len(c.Output())
	codec.Addr(&k, c)
	c.Copy(":")
	value := len(c.Output())
	kind((*e.values)[one.known-1], c)
	x.add(c, row{k, value - from, len(c.Output()) - from})
}

// runs divides the entries into runs. The entries of a run are unchanged, and are neighbours in the text. A changed
// entry is a run of its own.
func (e *entries) runs() (runs [][]entry) {
	for rest := e.all; len(rest) > 0; {
		end, n := rest[0].to, 1
		for ; n < len(rest) && rest[n].from == end+1 && rest[n].to > 0; n++ { // 1: the comma
			end = rest[n].to
		}
		runs = append(runs, rest[:n])
		rest = rest[n:]
	}
	return runs
}

// indexSize returns the number of characters of the index, or 0 if there is no index. There is no index if there are no
// entries. There is also none if a key has a zone, or if the text of an entry is too long for a row.
func (e *entries) indexSize(runs [][]entry) (n int) {
	for _, run := range runs {
		if run[0].row > 0 {
			n += len(e.rows(run))
			continue
		}
		for i := range run {
			one := &run[i]
			key := e.key(one)
			if key.Zone() != "" || one.to > 0 && (one.value-one.from > mostKey || one.to-one.from > mostEntry) {
				return 0
			}
			n += rowSize(key)
		}
	}
	return n
}

// rows returns the rows of a run in the index that was read.
func (e *entries) rows(run []entry) string {
	last := &run[len(run)-1]
	return e.in[run[0].row : int(last.row)+rowSize(e.key(last))]
}

// copy writes the original text of a run, and the rows of its entries.
func (e *entries) copy(c *codec.Codec, run []entry, x *indexer) {
	c.Comma()
	c.Copy(e.in[run[0].from:run[len(run)-1].to])
	if run[0].row > 0 {
		x.copy(c, e.rows(run))
		return
	}
	for i := range run {
		one := &run[i]
		x.add(c, row{e.key(one), int(one.value - one.from), int(one.to - one.from)})
	}
}

// rankOf returns the rank of an address, which is a number. Addresses with different ranks are in the order of their
// ranks. Different IPv6 addresses may have the same rank. A comparison of two ranks takes a fraction of the time of
// netip.Addr.Compare.
func rankOf(k netip.Addr) uint64 {
	if k.Is4() {
		b := k.As4()
		return uint64(binary.BigEndian.Uint32(b[:])) + 1 // the zero Addr comes first
	}
	if !k.IsValid() {
		return 0
	}
	b := k.As16()
	return wideRank(binary.BigEndian.Uint64(b[:]))
}

// wideRank is the rank of an IPv6 address, computed from the first half of the address.
func wideRank(half uint64) uint64 { return 1<<63 | half>>1 }

// find returns the index of the entry with the key k, or the index where such an entry would be.
func (e *entries) find(k netip.Addr) (i int, found bool) {
	i, end := e.bounds(k)
	for i < end {
		middle := int(uint(i+end) / 2)
		if e.before(middle, k) {
			i = middle + 1
		} else {
			end = middle
		}
	}
	found = i < len(e.all) && e.key(&e.all[i]) == k
	if e.next = i; found {
		e.next++
	}
	return i, found
}

// bounds returns the bounds of the range of indices where find must search. If e.next is the right index, both bounds
// are e.next.
func (e *entries) bounds(k netip.Addr) (from, end int) {
	switch next := e.next; {
	case next >= len(e.all):
		return 0, len(e.all)
	case e.before(next, k):
		return next + 1, len(e.all)
	case next == 0 || e.before(next-1, k):
		return next, next
	default:
		return 0, next - 1
	}
}

// before reports whether the key of an entry comes before k.
func (e *entries) before(i int, k netip.Addr) bool {
	one := &e.all[i]
	r, rank := e.rank(one), rankOf(k)
	return r < rank || r == rank && e.key(one).Less(k)
}

// ask returns the value of an entry. For a value that cannot be parsed, ask returns the zero value. This never happens,
// because [codec.Read] returns an error for such a text, and no caller gives such a text to [codec.ReadTrusted].
func (e *Entries[V]) ask(i int) V {
	one := &e.all[i]
	if one.known == 0 {
		v := new(V)
		if codec.Parse(e.in[one.value:one.to], v, e.kind) != nil {
			*v = *new(V)
		}
		one.known = e.know(e.key(one), v)
	}
	return *(*e.values)[one.known-1]
}

// Renew makes the next write encode again the entries for which stale returns true. Members of these entries that are
// not described are lost.
func (e *Entries[V]) Renew(stale func(text string, v V) bool) {
	for i := range e.all {
		one := &e.all[i]
		if one.to > 0 && stale(e.in[one.value:one.to], e.ask(i)) {
			one.to = 0
		}
	}
}

// Len is the number of entries.
func (e *entries) Len() int { return len(e.all) }

// At returns the value of the entry with the key k, and whether there is such an entry.
func (e *Entries[V]) At(k netip.Addr) (v V, ok bool) {
	i, ok := e.find(k)
	if ok {
		v = e.ask(i)
	}
	return v, ok
}

// Has reports whether there is an entry with the key k.
func (e *entries) Has(k netip.Addr) bool {
	_, found := e.find(k)
	return found
}

// Set sets the entry with the key k.
func (e *Entries[V]) Set(k netip.Addr, v V) {
	if old, ok := e.At(k); !ok || old != v {
		e.put(k, entry{known: e.know(k, &v)})
	}
}

// put inserts an entry at its place, or replaces the entry with the same key.
func (e *entries) put(k netip.Addr, one entry) {
	if n := len(e.all); n == 0 || e.key(&e.all[n-1]).Less(k) {
		e.all = append(e.all, one)
		return
	}
	i, found := e.find(k)
	if !found {
		e.moves++
		e.all = append(e.all, one) // slices.Insert would add 8 kB to a program
		copy(e.all[i+1:], e.all[i:])
	}
	e.all[i] = one
}

// Delete deletes the entry with the key k, if there is one.
func (e *entries) Delete(k netip.Addr) {
	if i, found := e.find(k); found {
		e.moves++
		e.all = slices.Delete(e.all, i, i+1)
	}
}
