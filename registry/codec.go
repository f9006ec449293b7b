// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// A codec reads and writes compact JSON by one description for both, see layout.go.
// Every ADD and every DEL reads and writes all that the node knows, in a process that
// has just begun: encoding/json, which reads each byte twice and has to learn first
// what our types look like, takes twenty times the instructions.
//
// A codec writes if it has an out, and else reads. After the first mistake, err, it
// reads nothing more.
type codec struct {
	in  string
	at  int  // how far it has been read; in an object, to the next key
	end bool // the object has no more members
	err error

	out []byte
}

func (c *codec) writes() bool { return c.out != nil }

func (c *codec) fail(err error) {
	if c.err == nil {
		c.err = fmt.Errorf("at byte %d: %w", c.at, err)
	}
}

// next reads the byte, if that is what comes next.
func (c *codec) next(b byte) bool {
	found := c.at < len(c.in) && c.in[c.at] == b
	if found {
		c.at++
	}
	return found
}

// word reads the text, if that is what comes next.
func (c *codec) word(text string) bool {
	found := strings.HasPrefix(c.in[c.at:], text)
	if found {
		c.at += len(text)
	}
	return found
}

// object is a value with the members that describe names. They are written in its
// order, and read in any, with one call of it if the order is the same. Members that it
// does not name go to other; nil drops them.
func (c *codec) object(describe func(), other func(key, raw string)) {
	if c.writes() {
		c.out = append(c.out, '{')
		describe()
		c.out = append(c.out, '}')
		return
	}
	for c.member(true); !c.end && c.err == nil; {
		at := c.at
		describe()
		if c.at > at || c.err != nil {
			continue
		}
		key, raw := c.name(), c.skip()
		if !json.Valid([]byte(raw)) {
			c.fail(fmt.Errorf("%s: this is no JSON", key))
		} else if other != nil {
			other(key, raw)
		}
		c.member(false)
	}
	c.end = false // the one around it goes on
}

// member reads up to the next member, or the end of the object.
func (c *codec) member(first bool) { c.end = !c.more(first, '{', '}') }

// name reads the key of a member.
func (c *codec) name() (key string) {
	if text(c, &key); !c.next(':') {
		c.fail(fmt.Errorf("want a colon after %q", key))
	}
	return key
}

// named reads the key of a member if that is the next one.
func (c *codec) named(key string) bool {
	end := c.at + 1 + len(key)
	found := !c.end && c.err == nil && len(c.in) > end+1 && c.in[end] == '"' && c.in[c.at+1:end] == key && c.in[end+1] == ':'
	if found {
		c.at = end + 2
	}
	return found
}

// more reads what stands before the next member or element, and tells whether there
// is one.
func (c *codec) more(first bool, opening, closing byte) bool {
	switch {
	case c.err != nil:
		return false
	case first && !c.next(opening):
		c.fail(fmt.Errorf("want %c", opening))
		return false
	case c.next(closing):
		return false
	case !first && !c.next(','):
		c.fail(fmt.Errorf("want a comma or %c", closing))
		return false
	}
	return true
}

// comma begins a member, or an element of a list.
func (c *codec) comma() {
	if last := c.out[len(c.out)-1]; last != '{' && last != '[' {
		c.out = append(c.out, ',')
	}
}

// field is a member of an object; null is its zero value.
func field[T any](c *codec, name string, v *T, value func(*codec, *T)) {
	if c.writes() {
		c.comma()
		c.out = append(append(append(c.out, '"'), name...), '"', ':')
		value(c, v)
	} else if c.named(name) {
		read(c, v, value)
	}
}

// read reads the value of a member, and up to the next one.
func read[T any](c *codec, v *T, value func(*codec, *T)) {
	if !c.word("null") {
		value(c, v)
	}
	c.member(false)
}

// optional is a member that is not written if it is zero.
func optional[T comparable](c *codec, name string, v *T, value func(*codec, *T)) {
	if *v != *new(T) || !c.writes() {
		field(c, name, v, value)
	}
}

// list is a member with values of one kind.
func list[T any](c *codec, name string, v *[]T, value func(*codec, *T)) {
	field(c, name, v, func(c *codec, v *[]T) {
		if c.writes() {
			c.out = append(c.out, '[')
			for i := range *v {
				c.comma()
				value(c, &(*v)[i])
			}
			c.out = append(c.out, ']')
			return
		}
		for first := true; c.more(first, '[', ']'); first = false {
			var one T
			value(c, &one)
			*v = append(*v, one)
		}
	})
}

// optionalList is a list that is not written if it is empty.
func optionalList[T any](c *codec, name string, v *[]T, value func(*codec, *T)) {
	if len(*v) > 0 || !c.writes() {
		list(c, name, v, value)
	}
}

// A keys is how the keys of a map are written, and in which order.
type keys[K comparable] struct {
	compare func(K, K) int
	text    func(K) string
	parse   func(string) (K, error)
}

var (
	byAddr = keys[netip.Addr]{netip.Addr.Compare, netip.Addr.String, netip.ParseAddr}
	byName = keys[string]{cmp.Compare[string], func(s string) string { return s }, func(s string) (string, error) { return s, nil }}
)

// table is a member that is a map.
func table[K comparable, V any](c *codec, name string, m map[K]V, keys keys[K], value func(*codec, *V)) {
	var v V
	members := func() {
		k, err := keys.parse(c.name())
		if err != nil {
			c.fail(err)
		}
		v = *new(V)
		read(c, &v, value)
		m[k] = v
	}
	if c.writes() {
		members = func() {
			for _, k := range slices.SortedFunc(maps.Keys(m), keys.compare) {
				c.comma()
				key := keys.text(k)
				text(c, &key)
				c.out = append(c.out, ':')
				v = m[k]
				value(c, &v)
			}
		}
	}
	field(c, name, &m, func(c *codec, _ *map[K]V) { c.object(members, nil) })
}

// optionalTable is a map that is not written if it is empty.
func optionalTable[K comparable, V any](c *codec, name string, m map[K]V, keys keys[K], value func(*codec, *V)) {
	if len(m) > 0 || !c.writes() {
		table(c, name, m, keys, value)
	}
}
