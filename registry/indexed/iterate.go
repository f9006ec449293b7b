// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed

import (
	"iter"
	"net/netip"
	"sort"
	"strings"
)

// each calls f for the entries from i on, until f returns false.
func (e *entries) each(i int, f func(i int, k netip.Addr) bool) {
	for i < len(e.all) {
		k, moves := e.key(&e.all[i]), e.moves
		if !f(i, k) {
			return
		}
		if e.moves != moves {
			i = e.at(i, k)
		}
		i++
	}
}

// at returns the present index of the entry with the key k, which was at i before a loop set or deleted entries. If the
// loop has deleted this entry, at returns the index of the entry before its place.
func (e *entries) at(i int, k netip.Addr) int {
	if i < len(e.all) && e.key(&e.all[i]) == k {
		return i
	}
	i, found := e.find(k)
	if !found {
		i--
	}
	return i
}

// Keys iterates over the keys, in order.
func (e *entries) Keys() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		e.each(0, func(_ int, k netip.Addr) bool { return yield(k) })
	}
}

// Changed iterates, in order, over the keys of the entries that have been set since they were read.
func (e *entries) Changed() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for i := range e.all {
			if one := &e.all[i]; one.to == 0 && !yield(e.key(one)) {
				return
			}
		}
	}
}

// Within iterates over the keys in a block, of any zone, in order.
func (e *entries) Within(b netip.Prefix) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		i, _ := e.find(b.Masked().Addr())
		e.each(i, func(_ int, k netip.Addr) bool { return b.Contains(k.WithZone("")) && yield(k) })
	}
}

// Count counts the entries in a block.
func (e *entries) Count(b netip.Prefix) int {
	from, _ := e.find(b.Masked().Addr())
	n := len(e.all) - from
	if b.Addr().Is4() {
		n = min(n, 1<<(32-b.Bits())) // a block has at most this many entries: the search need not look beyond
	}
	return sort.Search(n, func(i int) bool { return !b.Contains(e.key(&e.all[from+i]).WithZone("")) })
}

// All iterates over the entries, in order.
func (e *Entries[V]) All() iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		e.each(0, func(i int, k netip.Addr) bool { return yield(k, e.ask(i)) })
	}
}

// Beginning iterates, in order, over the entries whose value, as Write writes it, begins with the text. It also yields
// some other entries, so the caller must check the values. Beginning parses as few other entries as possible.
func (e *Entries[V]) Beginning(text string) iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		for i := e.begin(0, text); i < len(e.all); i = e.begin(i+1, text) {
			k := e.key(&e.all[i])
			if !yield(k, e.ask(i)) {
				return
			}
			i = e.at(i, k)
		}
	}
}

// Containing iterates, in order, over the entries whose value, as Write writes it, contains the text. It also yields
// the entries that are parsed already, so the caller must check the values. Containing parses no other entries.
func (e *Entries[V]) Containing(text string) iter.Seq2[netip.Addr, V] {
	return func(yield func(netip.Addr, V) bool) {
		e.each(0, func(i int, k netip.Addr) bool {
			one := &e.all[i]
			return one.known == 0 && !strings.Contains(e.in[one.value:one.to], text) || yield(k, e.ask(i))
		})
	}
}

// begin returns the index of the first entry from i on that is known, or whose value begins with the text.
func (e *entries) begin(i int, text string) int {
	p := newProbe(text)
	for ; i < len(e.all); i++ {
		one := &e.all[i]
		if one.known > 0 {
			break
		}
		if at := int(one.value) + p.at; p.at >= 0 && at+8 <= int(one.to) && eight(e.in[at:]) != p.want {
			continue
		}
		value := e.in[one.value:one.to]
		if strings.HasPrefix(value, text) {
			break
		}
		p.learn(value)
	}
	return i
}

// A probe compares eight bytes of a value with the text in one step. It compares at a place where other values differ
// from the text.
type probe struct {
	text string
	at   int // -1: the text is too short
	want uint64
}

// newProbe returns a probe in the middle of the text, because the values of a node have similar beginnings and ends.
func newProbe(text string) *probe {
	p := &probe{text: text}
	p.move(len(text) / 2)
	return p
}

func (p *probe) move(at int) {
	if p.at = min(at, len(p.text)-8); p.at >= 0 {
		p.want = eight(p.text[p.at:])
	}
}

// learn moves the probe to the first place where the value differs from the text. At the probe's old place, the value
// did not differ.
func (p *probe) learn(value string) {
	n := 0
	for n < min(len(value), len(p.text)) && value[n] == p.text[n] {
		n++
	}
	p.move(n)
}
