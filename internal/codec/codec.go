// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package codec reads and writes compact JSON. One description serves both: a function that
// names the members of an object, and the kind of each.
//
//	func (w *Warm) describe(c *codec.Codec) {
//		c.Object(func() {
//			codec.Field(c, "min", &w.Min, codec.Number)
//			codec.Field(c, "max", &w.Max, codec.Number)
//		})
//	}
//
// The package is for processes that live for milliseconds. Package encoding/json reads each byte twice, and first has
// to learn our types by reflection. encoding/json takes twenty times as many instructions. Program gen writes the
// descriptions from the struct tags; package codectest compares the two. The description of a type without tags of ours
// is written by hand.
package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Codec is what a description reads from or writes to. After the first error it reads
// nothing more.
type Codec struct {
	in  string
	at  int  // how far it has been read; in an object, to the next key
	end bool // the object has no more members
	err error

	trusted bool
	exact   bool
	seen    []string // names of the members read so far, of this object and of those around it
	own     int      // where the names of this object begin
	names   []string // of described members, see describes; not nil: the description is asked for them

	out   []byte // nil: this codec reads
	parts bool   // long texts that were read are not copied to out, but cut in
	cuts  []cut
}

// Write appends a value to out, which is not nil.
func Write(out []byte, value func(*Codec)) ([]byte, error) {
	c := Codec{out: out}
	value(&c)
	return c.out, c.err
}

// Read reads a value. Read accepts white space only in strings; null is the zero value.
func Read(in []byte, value func(*Codec)) error {
	c := Codec{in: string(in)}
	return c.read(value)
}

// ReadExactly reads a value exactly as encoding/json would. ReadExactly returns an error for a text that the two
// packages could read differently. Such a text has a name twice, a null, or a name that differs from the described one
// only in case. The text must be as json.Compact writes it.
func ReadExactly(in []byte, value func(*Codec)) error {
	c := Codec{in: string(in), exact: true}
	return c.read(value)
}

func (c *Codec) read(value func(*Codec)) error {
	if value(c); c.err == nil && c.at < len(c.in) {
		c.Fail(errors.New("something follows the value"))
	}
	return c.err
}

// Writes reports whether this codec writes.
func (c *Codec) Writes() bool { return c.out != nil }

// Fail records the first error.
func (c *Codec) Fail(err error) {
	if c.err == nil {
		c.err = fmt.Errorf("at byte %d: %w", c.at, err)
	}
}

// next reads the byte if it comes next, and reports whether it did.
func (c *Codec) next(b byte) bool {
	found := c.at < len(c.in) && c.in[c.at] == b
	if found {
		c.at++
	}
	return found
}

// word reads the text if it comes next, and reports whether it did.
func (c *Codec) word(text string) bool {
	found := strings.HasPrefix(c.in[c.at:], text)
	if found {
		c.at += len(text)
	}
	return found
}

// Each reads one value by several descriptions. Each of them knows some of its members.
func (c *Codec) Each(values ...func(*Codec)) {
	if c.Writes() {
		c.Fail(errors.New("several descriptions of one value cannot write it"))
		return
	}
	for at, i := c.at, 0; i < len(values) && c.err == nil; i++ {
		c.at = at
		values[i](c)
	}
}

// Object is a value with the members that the function describes. Object writes the members in the order of the
// function. It reads them in any order, with one call of the function if the order is the same. Other members are
// ignored.
func (c *Codec) Object(members func()) { c.ObjectAndRest(members, nil) }

// ObjectAndRest is an Object that keeps its other members, unparsed, in a map. Such an Object writes the other members
// after the described ones.
func (c *Codec) ObjectAndRest(members func(), rest map[string]string) {
	if c.Writes() {
		c.out = append(c.out, '{')
		members()
		if len(rest) > 0 { // to sort nothing takes a thousand instructions
			c.writeRest(rest)
		}
		c.out = append(c.out, '}')
		return
	}
	around := c.own
	c.own = len(c.seen)
	described := c.namesOf(members)
	for c.member(true); !c.end && c.err == nil; {
		at := c.at
		if c.describes(described) {
			members()
		}
		if c.at == at && c.err == nil {
			c.unknown(rest, described)
		}
	}
	c.seen, c.own = c.seen[:c.own], around
	c.end = false // the object around it has more
}

func (c *Codec) writeRest(rest map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(rest)) {
		c.Comma()
		Text(&key, c)
		c.out = append(append(c.out, ':'), rest[key]...)
	}
}

// namesOf returns the described names, in the exact mode. A configuration belongs to several plugins, so most of its
// members are not described here.
func (c *Codec) namesOf(members func()) []string {
	if !c.exact || c.err != nil {
		return nil
	}
	c.names = make([]string, 0, 32)
	members()
	names := c.names
	c.names = nil
	return names
}

// describes reports whether the next member may be one of the names. Only in the exact mode does the codec know.
func (c *Codec) describes(names []string) bool {
	if !c.exact {
		return true
	}
	key := c.in[min(c.at+1, len(c.in)):]
	return slices.Contains(names, key[:max(strings.IndexByte(key, '"'), 0)])
}

// unknown reads a member that is not described.
func (c *Codec) unknown(rest map[string]string, described []string) {
	from := c.at
	key := c.name()
	near := slices.IndexFunc(described, func(name string) bool {
		return len(name) == len(key) && strings.EqualFold(name, key)
	})
	switch {
	case c.exact && len(key)+len(`"":`) != c.at-from, c.exact && span(key) < len(key):
		c.Fail(fmt.Errorf("%q has escapes, or is not ASCII: it may be another name", key))
	case near >= 0:
		c.Fail(fmt.Errorf("%q may be %q", key, described[near]))
	}
	raw := c.skip()
	if !c.exact && !json.Valid([]byte(raw)) {
		c.Fail(fmt.Errorf("%s: this is no JSON", key))
	} else if rest != nil {
		rest[key] = raw
	}
	c.member(false)
}

// member reads up to the next member, or to the end of the object.
func (c *Codec) member(first bool) { c.end = !c.more(first, '{', '}') }

// name reads the key of a member.
func (c *Codec) name() (key string) {
	if Text(&key, c); !c.next(':') {
		c.Fail(fmt.Errorf("want a colon after %q", key))
	}
	return key
}

// named reads the key of a member if it is the next key, and reports whether it was.
func (c *Codec) named(key string) bool {
	if c.names != nil {
		c.names = append(c.names, key)
		return false
	}
	if from := c.at + 1; from < len(c.in) && c.in[from] != key[0] {
		return false // as most keys
	}
	end := c.at + 1 + len(key)
	if c.end || c.err != nil || len(c.in) <= end+1 || c.in[end] != '"' || c.in[end+1] != ':' || c.in[c.at] != '"' {
		return false // or they have another length
	}
	next := c.in[c.at+1 : end]
	switch found := next == key; {
	case found && c.exact && slices.Contains(c.seen[c.own:], key):
		c.Fail(fmt.Errorf("%q twice", key))
	case found && c.exact:
		c.seen = append(c.seen, key)
	}
	if next == key {
		c.at = end + 2
	}
	return next == key
}

// more reads the separator before the next member or element, and reports whether there is
// one.
func (c *Codec) more(first bool, opening, closing byte) bool {
	switch {
	case c.err != nil:
		return false
	case first && !c.next(opening):
		c.Fail(fmt.Errorf("want %c", opening))
		return false
	case c.next(closing):
		return false
	case !first && !c.next(','):
		c.Fail(fmt.Errorf("want a comma or %c", closing))
		return false
	}
	return true
}
