// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed

import (
	"maps"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// Kept keeps the values of a table, and the texts from which [codec.ReadTrusted] has read them. For an unchanged value,
// a process writes the kept text. To encode the value again would take ten times as long.
type Kept[V any] struct {
	values map[string]kept[V]
	text   string // the text of the whole table
}

type kept[V any] struct {
	value *V
	text  string
}

// ValueFuncs are the functions that a Kept needs: Same reports whether two values are equal, and Clone makes a deep
// copy.
type ValueFuncs[V any] struct {
	Same  func(a, b *V) bool
	Clone func(*V) *V
}

// Unchanged reports whether the values of the table m are exactly the kept values.
func (k *Kept[V]) Unchanged(m map[string]V, by ValueFuncs[V]) bool {
	if k.text == "" || len(m) != len(k.values) {
		return false
	}
	for key, v := range m {
		if _, same := k.lookup(key, &v, by); !same {
			return false
		}
	}
	return true
}

func (k *Kept[V]) lookup(key string, v *V, by ValueFuncs[V]) (text string, same bool) {
	old, ok := k.values[key]
	return old.text, ok && by.Same(old.value, v)
}

// KeptTable describes a member as [codec.Table] does, with names as keys ([codec.ByName]). [codec.ReadTrusted] stores
// the values and their texts in k. A later write uses the text of each unchanged value.
func KeptTable[V any](c *codec.Codec, name string, m *map[string]V, k *Kept[V], by ValueFuncs[V],
	kind func(*V, *codec.Codec)) {
	codec.Field(c, name, m, func(m *map[string]V, c *codec.Codec) {
		switch {
		case !c.Writes():
			k.readTable(c, *m, by, kind)
		case k.Unchanged(*m, by):
			c.Copy(k.text)
		default:
			c.Object(func() { k.writeTable(c, *m, by, kind) })
		}
	})
}

// readTable reads a table, and adds its values to m, which must not be nil. If the text is trusted, readTable also
// keeps the values in k.
func (k *Kept[V]) readTable(c *codec.Codec, m map[string]V, by ValueFuncs[V], kind func(*V, *codec.Codec)) {
	in, begin := c.Input()
	values, v := map[string]kept[V]{}, new(V)
	codec.ReadEntries(c, codec.ByName, func(key string, _ int) {
		_, from := c.Input()
		*v = *new(V)
		codec.Content(c, v, kind)
		m[key] = *v
		if _, to := c.Input(); c.Trusted() {
			values[key] = kept[V]{by.Clone(v), in[from:to]}
		}
	})
	if _, end := c.Input(); c.Trusted() {
		k.values, k.text = values, in[begin:end]
	}
}

func (k *Kept[V]) writeTable(c *codec.Codec, m map[string]V, by ValueFuncs[V], kind func(*V, *codec.Codec)) {
	v := new(V)
	for _, key := range slices.Sorted(maps.Keys(m)) {
		c.Comma()
		codec.Text(&key, c)
		c.Copy(":")
		*v = m[key]
		if text, same := k.lookup(key, v, by); same {
			c.Copy(text)
		} else {
			kind(v, c)
		}
	}
}
