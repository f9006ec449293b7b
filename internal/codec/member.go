// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
)

// Field describes a member of an object. The function kind reads or writes the member's value.
func Field[T any](c *Codec, name string, v *T, kind func(*T, *Codec)) {
	if c.begins(name) {
		value(c, v, kind)
	}
}

// begins writes the key of a member, or reads the key if this key comes next. It reports whether the member begins
// here. When a description reads, most of its members are not the next one in the text. So a function that makes a
// closure for its kind calls begins first. Otherwise each described member would cost an allocation.
func (c *Codec) begins(name string) bool {
	if !c.Writes() {
		return c.named(name)
	}
	c.Comma()
	c.out = append(append(append(c.out, '"'), name...), '"', ':')
	return true
}

// value reads or writes the value of a member that has begun.
func value[T any](c *Codec, v *T, kind func(*T, *Codec)) {
	if c.Writes() {
		kind(v, c)
		return
	}
	member(c, v, kind)
}

// member reads the value of a member, and up to the next member.
func member[T any](c *Codec, v *T, kind func(*T, *Codec)) {
	Content(c, v, kind)
	c.member(false)
}

// Content reads a value of the kind. If the text is null, Content does not change the value.
func Content[T any](c *Codec, v *T, kind func(*T, *Codec)) {
	if !c.word("null") {
		kind(v, c)
	} else if c.exact {
		c.Fail(errors.New("null")) // for encoding/json, the meaning of null depends on the type
	}
}

// Optional is a Field that is not written if its value is zero, as with omitempty or omitzero.
func Optional[T comparable](c *Codec, name string, v *T, kind func(*T, *Codec)) {
	if *v != *new(T) || !c.Writes() {
		Field(c, name, v, kind)
	}
}

// Nullable is a Field whose value may be null: see [Pointer].
func Nullable[T any](c *Codec, name string, v **T, kind func(*T, *Codec)) {
	if c.begins(name) {
		value(c, v, Pointer(kind))
	}
}

// List is a member that is a list of values of one kind.
func List[T any](c *Codec, name string, v *[]T, kind func(*T, *Codec)) {
	if !c.begins(name) {
		return
	}
	value(c, v, func(v *[]T, c *Codec) {
		if c.Writes() {
			c.out = append(c.out, '[')
			for i := range *v {
				c.Comma()
				kind(&(*v)[i], c)
			}
			c.out = append(c.out, ']')
			return
		}
		readList(v, c, kind)
	})
}

func readList[T any](v *[]T, c *Codec, kind func(*T, *Codec)) {
	*v = []T{}
	for first := true; c.more(first, '[', ']'); first = false {
		*v = append(*v, *new(T))
		kind(&(*v)[len(*v)-1], c)
	}
}

// OptionalList is a List that is not written if it is empty.
func OptionalList[T any](c *Codec, name string, v *[]T, kind func(*T, *Codec)) {
	if len(*v) > 0 || !c.Writes() {
		List(c, name, v, kind)
	}
}

// A Keys defines how the keys of a map are written, and their order.
type Keys[K comparable] struct {
	compare func(K, K) int
	kind    func(*K, *Codec)
	parse   func(string) (K, error)
}

// The keys of maps.
var (
	ByAddr = Keys[netip.Addr]{netip.Addr.Compare, Addr, netip.ParseAddr}
	ByName = Keys[string]{cmp.Compare[string], Text, func(s string) (string, error) { return s, nil }}
)

// Table is a member that is a map to values of one kind.
func Table[K comparable, V any](c *Codec, name string, m *map[K]V, keys Keys[K], kind func(*V, *Codec)) {
	if !c.begins(name) {
		return
	}
	value(c, m, func(m *map[K]V, c *Codec) {
		if c.Writes() {
			c.Object(func() { writeTable(c, *m, keys, kind) })
			return
		}
		readTable(c, m, keys, kind)
	})
}

func readTable[K comparable, V any](c *Codec, m *map[K]V, keys Keys[K], kind func(*V, *Codec)) {
	if *m == nil {
		*m = map[K]V{}
	}
	v := new(V) // one variable for all values, because a kind's argument escapes to the heap
	ReadEntries(c, keys, func(k K, _ int) {
		*v = *new(V)
		Content(c, v, kind)
		(*m)[k] = *v
	})
}

// ReadEntries reads an object whose keys are data. ReadEntries calls value to read each value, with the key and the
// offset at which the entry begins.
func ReadEntries[K comparable](c *Codec, keys Keys[K], value func(k K, from int)) {
	for first := true; c.more(first, '{', '}'); first = false {
		from := c.at
		value(key(c, keys), from)
	}
}

// key reads the key of an entry.
func key[K comparable](c *Codec, keys Keys[K]) K {
	k, err := keys.parse(c.name())
	if err != nil {
		c.Fail(err)
	}
	return k
}

func writeTable[K comparable, V any](c *Codec, m map[K]V, keys Keys[K], kind func(*V, *Codec)) {
	sorted := slices.AppendSeq(make([]K, 0, len(m)), maps.Keys(m))
	slices.SortFunc(sorted, keys.compare)
	v := new(V)
	for i := range sorted {
		*v = m[sorted[i]]
		writeEntry(c, keys, &sorted[i], v, kind)
	}
}

func writeEntry[K comparable, V any](c *Codec, keys Keys[K], k *K, v *V, kind func(*V, *Codec)) {
	c.Comma()
	keys.kind(k, c)
	c.out = append(c.out, ':')
	kind(v, c)
}

// OptionalTable is a Table that is not written if it is empty.
func OptionalTable[K comparable, V any](c *Codec, name string, m *map[K]V, keys Keys[K], kind func(*V, *Codec)) {
	if len(*m) > 0 || !c.Writes() {
		Table(c, name, m, keys, kind)
	}
}

// Within is a member that is an object without a type of its own.
func Within(c *Codec, name string, members func()) {
	if c.begins(name) {
		value(c, new(struct{}), func(_ *struct{}, c *Codec) { c.Object(members) })
	}
}
