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

// Field describes a member with this name. The member's value is of this kind, and v points to the Go value.
func Field[T any](c *Codec, name string, v *T, kind func(*T, *Codec)) {
	if c.beginMember(name) {
		readOrWrite(c, v, kind)
	}
}

// beginMember begins the member with this name. It writes the name as the key, or reads the next key in the text if
// this key is equal to the name. It returns true if it has written or read the key. A description has many members, of
// which only one is the next in the text. So a caller allocates a closure only after beginMember has returned true.
func (c *Codec) beginMember(name string) bool {
	if !c.Writes() {
		return c.readKeyIf(name)
	}
	c.Comma()
	c.out = append(append(append(c.out, '"'), name...), '"', ':')
	return true
}

// readOrWrite reads or writes the value of a member after beginMember has read or written the key.
func readOrWrite[T any](c *Codec, v *T, kind func(*T, *Codec)) {
	if c.Writes() {
		kind(v, c)
		return
	}
	readMember(c, v, kind)
}

// readMember reads the value of a member, and then the text between this value and the next key.
func readMember[T any](c *Codec, v *T, kind func(*T, *Codec)) {
	Content(c, v, kind)
	c.nextMember(false)
}

// Content reads a value of this kind into *v. If the text is null, Content does not change *v.
func Content[T any](c *Codec, v *T, kind func(*T, *Codec)) {
	if !c.readWord("null") {
		kind(v, c)
	} else if c.exact {
		c.Fail(errors.New("null")) // for some types, encoding/json would not read null as this package does
	}
}

// Optional describes a member as Field does, but omits a zero value when it writes, like encoding/json with omitzero.
func Optional[T comparable](c *Codec, name string, v *T, kind func(*T, *Codec)) {
	if *v != *new(T) || !c.Writes() {
		Field(c, name, v, kind)
	}
}

// Nullable describes a member as Field does, but the value may be null: see [Pointer].
func Nullable[T any](c *Codec, name string, v **T, kind func(*T, *Codec)) {
	if c.beginMember(name) {
		readOrWrite(c, v, Pointer(kind))
	}
}

// List describes a member whose value is an array. The elements of the array are of this kind.
func List[T any](c *Codec, name string, v *[]T, kind func(*T, *Codec)) {
	if !c.beginMember(name) {
		return
	}
	readOrWrite(c, v, func(v *[]T, c *Codec) {
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
	for first := true; c.readSeparator(first, '[', ']'); first = false {
		*v = append(*v, *new(T))
		kind(&(*v)[len(*v)-1], c)
	}
}

// OptionalList describes a member as List does, but does not write an empty list.
func OptionalList[T any](c *Codec, name string, v *[]T, kind func(*T, *Codec)) {
	if len(*v) > 0 || !c.Writes() {
		List(c, name, v, kind)
	}
}

// Keys define how a Codec reads and writes the keys of a map, and in which order it writes them.
type Keys[K comparable] struct {
	compare func(K, K) int
	kind    func(*K, *Codec)
	parse   func(string) (K, error)
}

// The Keys for maps with addresses or strings as keys.
var (
	ByAddr = Keys[netip.Addr]{netip.Addr.Compare, Addr, netip.ParseAddr}
	ByName = Keys[string]{cmp.Compare[string], Text, func(s string) (string, error) { return s, nil }}
)

// Table describes a member whose Go value is a map, and whose JSON value is an object. The map's values are of this
// kind.
func Table[K comparable, V any](c *Codec, name string, m *map[K]V, keys Keys[K], kind func(*V, *Codec)) {
	if !c.beginMember(name) {
		return
	}
	readOrWrite(c, m, func(m *map[K]V, c *Codec) {
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
	v := new(V) // use one variable for all values, because the call of kind makes v escape to the heap
	ReadEntries(c, keys, func(k K, _ int) {
		*v = *new(V)
		Content(c, v, kind)
		(*m)[k] = *v
	})
}

// ReadEntries reads an object that is a map. For each entry, it reads the key, and calls the function "value", which
// must read the entry's value. The function's argument "from" is the offset of the entry in the text.
func ReadEntries[K comparable](c *Codec, keys Keys[K], value func(k K, from int)) {
	for first := true; c.readSeparator(first, '{', '}'); first = false {
		from := c.offset
		value(readEntryKey(c, keys), from)
	}
}

// readEntryKey reads the key of a map entry, and the colon.
func readEntryKey[K comparable](c *Codec, keys Keys[K]) K {
	k, err := keys.parse(c.readKey())
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

// OptionalTable describes a member as Table does, but does not write an empty map.
func OptionalTable[K comparable, V any](c *Codec, name string, m *map[K]V, keys Keys[K], kind func(*V, *Codec)) {
	if len(*m) > 0 || !c.Writes() {
		Table(c, name, m, keys, kind)
	}
}

// Within describes a member whose value is an object. The argument "members" is a function that describes the members
// of that object.
func Within(c *Codec, name string, members func()) {
	if c.beginMember(name) {
		readOrWrite(c, new(struct{}), func(_ *struct{}, c *Codec) { c.Object(members) })
	}
}
