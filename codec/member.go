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

// Field is a member of an object, whose value is of the kind.
func Field[T any](c *Codec, name string, v *T, kind func(*T, *Codec)) {
	if c.Writes() {
		c.comma()
		c.out = append(append(append(c.out, '"'), name...), '"', ':')
		kind(v, c)
	} else if c.named(name) {
		member(c, v, kind)
	}
}

// member reads the value of a member, and up to the next one.
func member[T any](c *Codec, v *T, kind func(*T, *Codec)) {
	if !c.word("null") {
		kind(v, c)
	} else if c.exact {
		c.Fail(errors.New("null")) // which encoding/json has a meaning of for each type
	}
	c.member(false)
}

// Optional is a Field that is not written if it is zero: omitempty, or omitzero.
func Optional[T comparable](c *Codec, name string, v *T, kind func(*T, *Codec)) {
	if *v != *new(T) || !c.Writes() {
		Field(c, name, v, kind)
	}
}

// List is a member with values of one kind.
func List[T any](c *Codec, name string, v *[]T, kind func(*T, *Codec)) {
	Field(c, name, v, func(v *[]T, c *Codec) {
		if c.Writes() {
			c.out = append(c.out, '[')
			for i := range *v {
				c.comma()
				kind(&(*v)[i], c)
			}
			c.out = append(c.out, ']')
			return
		}
		*v = []T{}
		for first := true; c.more(first, '[', ']'); first = false {
			var one T
			kind(&one, c)
			*v = append(*v, one)
		}
	})
}

// OptionalList is a List that is not written if it is empty.
func OptionalList[T any](c *Codec, name string, v *[]T, kind func(*T, *Codec)) {
	if len(*v) > 0 || !c.Writes() {
		List(c, name, v, kind)
	}
}

// A Keys is how the keys of a map are written, and in which order.
type Keys[K comparable] struct {
	compare func(K, K) int
	text    func(K) string
	parse   func(string) (K, error)
}

// The keys of maps.
var (
	ByAddr = Keys[netip.Addr]{netip.Addr.Compare, netip.Addr.String, netip.ParseAddr}
	ByName = Keys[string]{cmp.Compare[string], func(s string) string { return s }, func(s string) (string, error) { return s, nil }}
)

// Table is a member that is a map to values of one kind.
func Table[K comparable, V any](c *Codec, name string, m *map[K]V, keys Keys[K], kind func(*V, *Codec)) {
	Field(c, name, m, func(m *map[K]V, c *Codec) {
		if *m == nil && !c.Writes() {
			*m = map[K]V{}
		}
		c.Object(func() {
			if !c.Writes() {
				k, v := entry(c, keys, kind)
				(*m)[k] = v
				return
			}
			for _, k := range slices.SortedFunc(maps.Keys(*m), keys.compare) {
				v := (*m)[k]
				c.comma()
				writeEntry(c, keys, k, &v, kind)
			}
		})
	})
}

// entry reads a key and its value.
func entry[K comparable, V any](c *Codec, keys Keys[K], kind func(*V, *Codec)) (k K, v V) {
	k, err := keys.parse(c.name())
	if err != nil {
		c.Fail(err)
	}
	member(c, &v, kind)
	return k, v
}

func writeEntry[K comparable, V any](c *Codec, keys Keys[K], k K, v *V, kind func(*V, *Codec)) {
	key := keys.text(k)
	Text(&key, c)
	c.out = append(c.out, ':')
	kind(v, c)
}

// A Memory is a Table as it was read: what each entry was, and how it stood there.
type Memory[K, V comparable] []remembered[K, V]

type remembered[K, V comparable] struct {
	key   K
	value V
	text  string
}

// Remembered is a Table that is also read into a memory. An entry that is still what it
// was is written as it stood, which is several times faster; of an entry of a later
// release nothing is lost so.
func Remembered[K, V comparable](c *Codec, name string, m *map[K]V, was *Memory[K, V], keys Keys[K], kind func(*V, *Codec)) {
	const length = 256 // of an entry, about: a guess is better than to grow ten times
	Field(c, name, m, func(m *map[K]V, c *Codec) {
		if c.Writes() {
			c.Object(func() { was.write(c, *m, keys, kind) })
			return
		}
		*was = make(Memory[K, V], 0, (len(c.in)-c.at)/length)
		c.Object(func() {
			from := c.at
			if k, v := entry(c, keys, kind); c.err == nil {
				*was = append(*was, remembered[K, V]{k, v, c.in[from : c.at-1]}) // but for the comma, or the brace that ends the table
			}
		})
		*m = make(map[K]V, len(*was))
		for i := range *was {
			(*m)[(*was)[i].key] = (*was)[i].value
		}
	})
}

// write writes a map. The memory is in the order of the keys, unless a person has edited
// the file; an entry that is not found in it is none the worse.
func (was Memory[K, V]) write(c *Codec, m map[K]V, keys Keys[K], kind func(*V, *Codec)) {
	for _, k := range slices.SortedFunc(maps.Keys(m), keys.compare) {
		for len(was) > 0 && keys.compare(was[0].key, k) < 0 {
			was = was[1:]
		}
		v := m[k]
		c.comma()
		if len(was) > 0 && was[0].key == k && was[0].value == v {
			c.out = append(c.out, was[0].text...)
		} else {
			writeEntry(c, keys, k, &v, kind)
		}
	}
}

// OptionalTable is a Table that is not written if it is empty.
func OptionalTable[K comparable, V any](c *Codec, name string, m *map[K]V, keys Keys[K], kind func(*V, *Codec)) {
	if len(*m) > 0 || !c.Writes() {
		Table(c, name, m, keys, kind)
	}
}

// Within is a member that is an object, which has no type of its own.
func Within(c *Codec, name string, members func()) {
	Field(c, name, new(struct{}), func(_ *struct{}, c *Codec) { c.Object(members) })
}
