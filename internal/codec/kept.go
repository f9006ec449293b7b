// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"maps"
	"slices"
)

// Kept are the values of a table when its text was read late, by their keys. A value that is still the same is written as
// its original text, which takes a tenth of the time.
type Kept[V any] struct {
	values map[string]kept[V]
	text   string // of the table
}

type kept[V any] struct {
	value *V
	text  string
}

// A Keeping compares two values, and copies one with all that it refers to.
type Keeping[V any] struct {
	Same  func(a, b *V) bool
	Clone func(*V) *V
}

// Same reports whether the table is the same as when it was read.
func (k *Kept[V]) Same(m map[string]V, by Keeping[V]) bool {
	if k.text == "" || len(m) != len(k.values) {
		return false
	}
	for key, v := range m {
		if _, same := k.find(key, &v, by); !same {
			return false
		}
	}
	return true
}

func (k *Kept[V]) find(key string, v *V, by Keeping[V]) (text string, same bool) {
	old, ok := k.values[key]
	return old.text, ok && by.Same(old.value, v)
}

// KeptTable is a Table by name whose values are kept: ReadLate adds some, and Write looks for them.
func KeptTable[V any](c *Codec, name string, m *map[string]V, k *Kept[V], by Keeping[V], kind func(*V, *Codec)) {
	if !c.begins(name) {
		return
	}
	value(c, m, func(m *map[string]V, c *Codec) {
		switch {
		case !c.Writes():
			k.read(c, m, by, kind)
		case k.Same(*m, by):
			c.copy(k.text)
		default:
			c.Object(func() { k.write(c, *m, by, kind) })
		}
	})
}

func (k *Kept[V]) read(c *Codec, m *map[string]V, by Keeping[V], kind func(*V, *Codec)) {
	if c.late {
		k.values = map[string]kept[V]{}
	}
	begin := c.at
	readTable(c, m, ByName, func(v *V, c *Codec) {
		from, key := c.at, c.key
		if kind(v, c); c.late {
			k.values[key] = kept[V]{by.Clone(v), c.in[from:c.at]}
		}
	})
	if c.late {
		k.text = c.in[begin:c.at]
	}
}

func (k *Kept[V]) write(c *Codec, m map[string]V, by Keeping[V], kind func(*V, *Codec)) {
	v := new(V)
	for _, key := range slices.Sorted(maps.Keys(m)) {
		c.comma()
		Text(&key, c)
		c.out = append(c.out, ':')
		*v = m[key]
		if text, same := k.find(key, v, by); same {
			c.copy(text)
		} else {
			kind(v, c)
		}
	}
}
