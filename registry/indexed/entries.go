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

// Entries are a map from addresses to values, which a process reads from a text and writes to a new text. Usually the
// process uses only one of thousands of entries. So Entries copy the text of each unchanged entry. The copied text also
// keeps fields that only a later release knows. If [codec.ReadTrusted] has read an index, Entries parse a value only
// when a caller uses this value.
//
// The zero value of Entries is an empty map. As with a map of Go, a caller may set and delete entries in a range loop
// over the Entries. Goroutines must not call any methods concurrently, because even methods that only read may parse a
// value.
type Entries[V comparable] struct {
	entries
	kind   func(*V, *codec.Codec)
	values *[]*V // the values of the known entries
}

// entries is the part of Entries that does not depend on the type of the values.
type entries struct {
	in        string        // the text that all offsets refer to
	entryList []entry       // in the order of the keys
	keys      *[]netip.Addr // the keys of the known entries; copies of the Entries share keys and entryList
	moves     int           // how many changes have moved entries within entryList
	// the position in entryList where indexOf looks first: right after the last key for which indexOf has looked. Many
	// callers look for the keys in order
	next int
}

// An entry is one entry of the map. It is small and has no pointers, because a node has thousands of entries. An entry
// is "known" if its key and its value are parsed. If not, the key is in the entry's row of the index.
type entry struct {
	// offsets in the text: the beginning of the entry (from), the beginning of the entry's value (value), and the end
	// of the entry (to). The end is 0 if the entry has changed
	from, value, to int32
	row             int32 // offset of the entry's row in the text; 0 if the text has no index
	knownNumber     int32 // 1 + the entry's index in entries.keys and Entries.values; 0: not known
}

func (e *entries) entryKey(one *entry) netip.Addr {
	if one.knownNumber > 0 {
		return (*e.keys)[one.knownNumber-1]
	}
	return rowKey(e.in[one.row:])
}

// entryRank returns the rank of the entry's key: see addrRank.
func (e *entries) entryRank(one *entry) uint64 {
	if one.knownNumber > 0 {
		return addrRank((*e.keys)[one.knownNumber-1])
	}
	return rowRank(e.in[one.row:])
}

// addKnown adds a key to keys, and its value to values. The caller must store the result in the field knownNumber of
// the entry.
func (e *Entries[V]) addKnown(k netip.Addr, v *V) int32 {
	if e.keys == nil {
		e.keys, e.values = new([]netip.Addr), new([]*V)
	}
	*e.keys, *e.values = append(*e.keys, k), append(*e.values, v)
	return int32(len(*e.values))
}

// EntriesTable describes a member as [codec.Table] does, but with Entries instead of a map.
func EntriesTable[V comparable](c *codec.Codec, name string, e *Entries[V], kind func(*V, *codec.Codec)) {
	if c.Writes() {
		e.writeTable(c, name, kind)
		return
	}
	var x index
	codec.Field(c, indexName(name), &x, (*index).readIndex)
	codec.Field(c, name, e, func(e *Entries[V], c *codec.Codec) { e.readTable(c, x, kind) })
}

func (e *Entries[V]) readTable(c *codec.Codec, x index, kind func(*V, *codec.Codec)) {
	in, _ := c.Input()
	*e = Entries[V]{entries: entries{in: in, keys: new([]netip.Addr)}, kind: kind, values: new([]*V)}
	if len(in) > math.MaxInt32 {
		c.Fail(errors.New("the text is too long"))
	}
	if c.Trusted() && x.rows != "" {
		e.readByIndex(c, x)
		return
	}
	codec.ReadEntries(c, codec.ByAddr, func(k netip.Addr, from int) {
		v := new(V)
		_, value := c.Input()
		codec.Content(c, v, kind)
		_, to := c.Input()
		e.putEntry(k, entry{from: int32(from), value: int32(value), to: int32(to), knownNumber: e.addKnown(k, v)})
	})
}

// readByIndex fills entryList from the index. For speed, readByIndex parses no key, and its loop calls only functions
// that the compiler inlines.
func (e *entries) readByIndex(c *codec.Codec, x index) {
	const more = 4                                      // for new entries, so that Set need not copy the slice
	all := make([]entry, len(x.rows)/(2*wordSize)+more) // no row has fewer than 2*wordSize digits
	in, from := c.Input()
	n := 0
	for i := 0; i <= len(x.rows)-2*wordSize; n++ {
		head := parseDigits(eightBytes(x.rows[i:]))
		one := &all[n]
		one.row = int32(x.offset + i)
		offset := int(head >> 20)
		i += 2 * wordSize
		if offset >= wideFlag {
			offset -= wideFlag
			i += 3 * wordSize
		}
		from++ // skip the brace or the comma before the entry
		end := from + int(head&maxEntrySize)
		one.from, one.value, one.to = int32(from), int32(from+offset), int32(end)
		if from+offset >= end || end >= len(in) || i > len(x.rows) {
			c.Fail(errIndex)
			return
		}
		from = end
	}
	e.entryList = all[:n]
	if !strings.HasPrefix(in[from:], "}") {
		c.Fail(errIndex)
		return
	}
	c.Seek(from + 1)
}

// writeTable writes two members: one with the index, and one with the entries.
func (e *Entries[V]) writeTable(c *codec.Codec, name string, kind func(*V, *codec.Codec)) {
	runs := e.textRuns()
	x := newIndexer(c, name, e.indexSize(runs))
	codec.Field(c, name, e, func(e *Entries[V], c *codec.Codec) {
		c.Object(func() {
			for _, run := range runs {
				if run[0].to > 0 {
					e.copyRun(c, run, &x)
				} else {
					e.writeChanged(c, &run[0], &x, kind)
				}
			}
		})
	})
}

// writeChanged writes a changed entry: it encodes the entry's value, and writes the entry's row.
func (e *Entries[V]) writeChanged(c *codec.Codec, one *entry, x *indexer, kind func(*V, *codec.Codec)) {
	k := e.entryKey(one)
	if !k.IsValid() {
		c.Fail(errors.New("an entry has no key"))
	}
	c.Comma()
	from := len(c.Output())
	codec.Addr(&k, c)
	c.Copy(":")
	value := len(c.Output())
	kind((*e.values)[one.knownNumber-1], c)
	x.addRow(c, row{k, value - from, len(c.Output()) - from})
}

// textRuns divides the entries into runs. A run is one changed entry, or several unchanged entries that follow each
// other in the original text.
func (e *entries) textRuns() (runs [][]entry) {
	for rest := e.entryList; len(rest) > 0; {
		end, n := rest[0].to, 1
		for ; n < len(rest) && rest[n].from == end+1 && rest[n].to > 0; n++ { // the comma has one byte
			end = rest[n].to
		}
		runs = append(runs, rest[:n])
		rest = rest[n:]
	}
	return runs
}

// indexSize returns the number of digits of the index. It returns 0 if the text gets no index. This is so if there are
// no entries, a key has a zone, or an entry is too long for a row.
func (e *entries) indexSize(runs [][]entry) (n int) {
	for _, run := range runs {
		if run[0].row > 0 {
			n += len(e.runRows(run))
			continue
		}
		for i := range run {
			one := &run[i]
			key := e.entryKey(one)
			offset, size := one.value-one.from, one.to-one.from
			if key.Zone() != "" || one.to > 0 && (offset > maxValueOffset || size > maxEntrySize) {
				return 0
			}
			n += rowSize(key)
		}
	}
	return n
}

// runRows returns the rows of a run from the index in the original text.
func (e *entries) runRows(run []entry) string {
	last := &run[len(run)-1]
	return e.in[run[0].row : int(last.row)+rowSize(e.entryKey(last))]
}

// copyRun writes the original text of a run, and the rows of the run's entries.
func (e *entries) copyRun(c *codec.Codec, run []entry, x *indexer) {
	c.Comma()
	c.Copy(e.in[run[0].from:run[len(run)-1].to])
	if run[0].row > 0 {
		x.copyRows(c, e.runRows(run))
		return
	}
	for i := range run {
		one := &run[i]
		x.addRow(c, row{e.entryKey(one), int(one.value - one.from), int(one.to - one.from)})
	}
}

// addrRank returns a number that orders addresses as netip.Addr.Compare does, in a fraction of the time. Two different
// IPv6 addresses can have the same rank.
func addrRank(k netip.Addr) uint64 {
	if k.Is4() {
		b := k.As4()
		return uint64(binary.BigEndian.Uint32(b[:])) + 1 // at least 1, because the zero Addr has the rank 0
	}
	if !k.IsValid() {
		return 0
	}
	b := k.As16()
	return wideRank(binary.BigEndian.Uint64(b[:]))
}

// wideRank returns the rank of an IPv6 address from the first eight bytes of the address.
func wideRank(half uint64) uint64 { return 1<<63 | half>>1 }

// indexOf returns the position in entryList of the entry with the key k. If there is no entry with this key, indexOf
// returns the position where a new entry with this key belongs.
func (e *entries) indexOf(k netip.Addr) (i int, found bool) {
	i, end := e.searchBounds(k)
	for i < end {
		middle := int(uint(i+end) / 2)
		if e.isBefore(middle, k) {
			i = middle + 1
		} else {
			end = middle
		}
	}
	found = i < len(e.entryList) && e.entryKey(&e.entryList[i]) == k
	if e.next = i; found {
		e.next++
	}
	return i, found
}

// searchBounds returns the bounds of the binary search in indexOf. If the position of the key k is e.next, both bounds
// are e.next, and indexOf need not search.
func (e *entries) searchBounds(k netip.Addr) (from, end int) {
	switch next := e.next; {
	case next >= len(e.entryList):
		return 0, len(e.entryList)
	case e.isBefore(next, k):
		return next + 1, len(e.entryList)
	case next == 0 || e.isBefore(next-1, k):
		return next, next
	default:
		return 0, next - 1
	}
}

func (e *entries) isBefore(i int, k netip.Addr) bool {
	one := &e.entryList[i]
	r, rank := e.entryRank(one), addrRank(k)
	return r < rank || r == rank && e.entryKey(one).Less(k)
}

// valueAt returns the value of entryList[i]. If the text of the value were invalid, valueAt would return the zero
// value. But [codec.Read] returns an error for an invalid text, and callers give only valid texts to
// [codec.ReadTrusted].
func (e *Entries[V]) valueAt(i int) V {
	one := &e.entryList[i]
	if one.knownNumber == 0 {
		v := new(V)
		if codec.Parse(e.in[one.value:one.to], v, e.kind) != nil {
			*v = *new(V)
		}
		one.knownNumber = e.addKnown(e.entryKey(one), v)
	}
	return *(*e.values)[one.knownNumber-1]
}

// Renew passes each unchanged entry to the function stale. If the function returns true, the next write encodes the
// entry again. The new text of the entry has only the members that e.kind describes.
func (e *Entries[V]) Renew(stale func(text string, v V) bool) {
	for i := range e.entryList {
		one := &e.entryList[i]
		if one.to > 0 && stale(e.in[one.value:one.to], e.valueAt(i)) {
			one.to = 0
		}
	}
}

// Len returns the number of entries.
func (e *entries) Len() int { return len(e.entryList) }

// At returns the value of the entry with the key k. If there is no entry with this key, ok is false.
func (e *Entries[V]) At(k netip.Addr) (v V, ok bool) {
	i, ok := e.indexOf(k)
	if ok {
		v = e.valueAt(i)
	}
	return v, ok
}

// Has reports whether there is an entry with the key k.
func (e *entries) Has(k netip.Addr) bool {
	_, found := e.indexOf(k)
	return found
}

// Set sets the entry with the key k.
func (e *Entries[V]) Set(k netip.Addr, v V) {
	if old, ok := e.At(k); !ok || old != v {
		e.putEntry(k, entry{knownNumber: e.addKnown(k, &v)})
	}
}

// putEntry inserts an entry with the key k into entryList, or replaces the entry that has this key.
func (e *entries) putEntry(k netip.Addr, one entry) {
	if n := len(e.entryList); n == 0 || e.entryKey(&e.entryList[n-1]).Less(k) {
		e.entryList = append(e.entryList, one)
		return
	}
	i, found := e.indexOf(k)
	if !found {
		e.moves++
		e.entryList = append(e.entryList, one) // slices.Insert would add 8 kB to a program
		copy(e.entryList[i+1:], e.entryList[i:])
	}
	e.entryList[i] = one
}

// Delete deletes the entry with the key k, if there is one.
func (e *entries) Delete(k netip.Addr) {
	if i, found := e.indexOf(k); found {
		e.moves++
		e.entryList = slices.Delete(e.entryList, i, i+1)
	}
}
