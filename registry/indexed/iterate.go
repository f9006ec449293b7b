// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed

import (
	"iter"
	"net/netip"
	"sort"
	"strings"
)

// forEach calls the function f for entryList[i] and each later entry, until f returns false.
func (e *entries) forEach(i int, f func(i int, k netip.Addr) bool) {
	for i < len(e.entryList) {
		k, moves := e.entryKey(&e.entryList[i]), e.moves
		if !f(i, k) {
			return
		}
		if e.moves != moves {
			i = e.currentIndex(i, k)
		}
		i++
	}
}

// currentIndex returns the position in entryList of the entry with the key k. The entry was at the position i before
// the body of a range loop ran. If the body has deleted the entry, currentIndex returns the position of the last entry
// before k.
func (e *entries) currentIndex(i int, k netip.Addr) int {
	if i < len(e.entryList) && e.entryKey(&e.entryList[i]) == k {
		return i
	}
	i, found := e.indexOf(k)
	if !found {
		i--
	}
	return i
}

// Keys iterates over the keys, in order.
func (e *entries) Keys() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		e.forEach(0, func(_ int, k netip.Addr) bool { return yield(k) })
	}
}

// Changed iterates, in order, over the keys of the entries that have changed after a codec read the Entries.
func (e *entries) Changed() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for i := range e.entryList {
			if one := &e.entryList[i]; one.to == 0 && !yield(e.entryKey(one)) {
				return
			}
		}
	}
}

// Within iterates, in order, over the keys in a block. It ignores the zones of keys.
func (e *entries) Within(b netip.Prefix) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		i, _ := e.indexOf(b.Masked().Addr())
		e.forEach(i, func(_ int, k netip.Addr) bool { return b.Contains(k.WithZone("")) && yield(k) })
	}
}

// Count counts the entries in a block.
func (e *entries) Count(b netip.Prefix) int {
	from, _ := e.indexOf(b.Masked().Addr())
	n := len(e.entryList) - from
	if b.Addr().Is4() {
		n = min(n, 1<<(32-b.Bits())) // a block cannot have more entries than addresses
	}
	return sort.Search(n, func(i int) bool { return !b.Contains(e.entryKey(&e.entryList[from+i]).WithZone("")) })
}

// All iterates over the entries, in order.
func (e *Entries[V]) All() iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		e.forEach(0, func(i int, k netip.Addr) bool { return yield(k, e.valueAt(i)) })
	}
}

// Beginning iterates, in order, over the entries whose encoded value begins with the given text. It also yields all
// entries that were parsed before, so the caller must check the values. It parses only values that begin with the text.
func (e *Entries[V]) Beginning(text string) iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		for i := e.nextCandidate(0, text); i < len(e.entryList); i = e.nextCandidate(i+1, text) {
			k := e.entryKey(&e.entryList[i])
			if !yield(k, e.valueAt(i)) {
				return
			}
			i = e.currentIndex(i, k)
		}
	}
}

// Containing iterates, in order, over the entries whose encoded value contains the given text. It also yields all
// entries that were parsed before, so the caller must check the values. It parses only values that contain the text.
func (e *Entries[V]) Containing(text string) iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		e.forEach(0, func(i int, k netip.Addr) bool {
			one := &e.entryList[i]
			return one.knownNumber == 0 && !strings.Contains(e.in[one.value:one.to], text) || yield(k, e.valueAt(i))
		})
	}
}

// nextCandidate returns the position of the first entry, from entryList[i] on, that is known or whose encoded value
// begins with the given text.
func (e *entries) nextCandidate(i int, text string) int {
	p := newProbe(text)
	for ; i < len(e.entryList); i++ {
		one := &e.entryList[i]
		if one.knownNumber > 0 {
			break
		}
		if at := int(one.value) + p.offset; p.offset >= 0 && at+8 <= int(one.to) && eightBytes(e.in[at:]) != p.want {
			continue
		}
		value := e.in[one.value:one.to]
		if strings.HasPrefix(value, text) {
			break
		}
		p.moveToDifference(value)
	}
	return i
}

// A probe quickly finds the values that differ from a text. It compares eight bytes at one offset. If a value differs
// at another offset, the probe moves there, because the next value probably differs there, too.
type probe struct {
	text   string
	offset int // -1: the text is too short
	want   uint64
}

// newProbe returns a probe whose offset is the middle of the text. Values usually differ in the middle, because the
// values of a node have similar beginnings and ends.
func newProbe(text string) *probe {
	p := &probe{text: text}
	p.moveTo(len(text) / 2)
	return p
}

func (p *probe) moveTo(at int) {
	if p.offset = min(at, len(p.text)-8); p.offset >= 0 {
		p.want = eightBytes(p.text[p.offset:])
	}
}

// moveToDifference sets the probe's offset to the first byte in which the value differs from the text.
func (p *probe) moveToDifference(value string) {
	n := 0
	for n < min(len(value), len(p.text)) && value[n] == p.text[n] {
		n++
	}
	p.moveTo(n)
}
