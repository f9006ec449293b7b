// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import "slices"

// Lists are some lists of a text that was read late, by an owner and their name. A list that is
// still the same is written as its original text, which takes a tenth of the time. Lists of addresses without an index are
// not among them: they are short, or have IPv6 addresses.
type Lists map[string]any // of kept

// A kept is the values of a list when it was read, and its text.
type kept[T comparable] struct {
	values []T
	text   string
	rows   string // of the index, for addresses
}

// Keep has the codec use the lists: ReadLate adds some, and Write looks for them.
func (c *Codec) Keep(l Lists) { c.lists = l }

// Same reports whether the list of that owner is in the lists with the same values.
func Same[T comparable](l Lists, owner, name string, values []T) bool {
	_, same := find(l, owner, name, values)
	return same
}

func find[T comparable](l Lists, owner, name string, values []T) (kept[T], bool) {
	k, ok := l[owner+name].(kept[T])
	return k, ok && slices.Equal(k.values, values)
}

// KeptList is a List in the lists of Keep.
func KeptList[T comparable](c *Codec, owner, name string, v *[]T, kind func(*T, *Codec)) {
	if c.Writes() {
		if k, same := find(c.lists, owner, name, *v); same {
			c.begins(name)
			c.copy(k.text)
			return
		}
		List(c, name, v, kind)
		return
	}
	if c.begins(name) {
		value(c, v, func(v *[]T, c *Codec) {
			from := c.at
			readList(v, c, kind)
			keep(c, owner, name, *v, c.in[from:c.at], "")
		})
	}
}

func keep[T comparable](c *Codec, owner, name string, values []T, text, rows string) {
	if c.late && c.lists != nil {
		c.lists[owner+name] = kept[T]{slices.Clone(values), text, rows}
	}
}
