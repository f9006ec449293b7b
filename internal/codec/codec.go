// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package codec reads and writes compact JSON. Reading and writing use the same description: a function that names the
// members of an object, and the kind of each member. A kind is a function that reads or writes a value of one type.
//
//	func (w *Warm) describe(c *codec.Codec) {
//		c.Object(func() {
//			codec.Field(c, "min", &w.Min, codec.Number)
//			codec.Field(c, "max", &w.Max, codec.Number)
//		})
//	}
//
// The package is for processes that live for milliseconds. Package encoding/json takes twenty times as many
// instructions: it reads each byte twice, and first has to learn the types by reflection. Program gen writes the
// descriptions from the struct tags. Package codectest compares descriptions with struct tags. For a type without such
// struct tags, a person writes the description.
package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Codec reads or writes a text for a description. After the first error, a Codec reads nothing more.
type Codec struct {
	in  string
	at  int  // offset in the text where reading goes on; in an object, the offset of the next key
	end bool // the object has no more members
	err error

	trusted bool
	exact   bool
	seen    []string // names of the members read so far, of this object and of the objects around it
	own     int      // where the names of this object begin
	names   []string // names of described members, see namesOf; not nil: a description only adds its names

	out   []byte // nil: this codec reads
	parts bool   // long texts of the input are added to cuts, and not copied to out
	cuts  []cut
}

// Write appends a value to out, which is not nil.
func Write(out []byte, value func(*Codec)) ([]byte, error) {
	c := Codec{out: out}
	value(&c)
	return c.out, c.err
}

// Read reads a value. Read accepts white space only in strings. It reads null as the zero value.
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
		c.Fail(errors.New("there is text after the value"))
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

// next reads the next byte if this byte is b, and reports whether it has read the byte.
func (c *Codec) next(b byte) bool {
	found := c.at < len(c.in) && c.in[c.at] == b
	if found {
		c.at++
	}
	return found
}

// word reads the text if this text comes next, and reports whether it has read the text.
func (c *Codec) word(text string) bool {
	found := strings.HasPrefix(c.in[c.at:], text)
	if found {
		c.at += len(text)
	}
	return found
}

// Each reads one value with several descriptions. Each description has some of the value's members.
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

// Object describes a value that is an object. The function describes its members. Object writes the members in the
// order of the function, and reads them in any order. If the text has the members in the same order, one call of the
// function reads all of them. Object ignores members that are not described.
func (c *Codec) Object(members func()) { c.ObjectAndRest(members, nil) }

// ObjectAndRest is an Object that keeps the members that are not described. It keeps them, unparsed, in the map rest,
// and writes them after the described members.
func (c *Codec) ObjectAndRest(members func(), rest map[string]string) {
	if c.Writes() {
		c.out = append(c.out, '{')
		members()
		if len(rest) > 0 { // sorting an empty map takes a thousand instructions
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
	c.end = false // the object that contains this object may have more members
}

func (c *Codec) writeRest(rest map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(rest)) {
		c.Comma()
		Text(&key, c)
		c.out = append(append(c.out, ':'), rest[key]...)
	}
}

// namesOf returns the names of the described members for ReadExactly, and nil for other reads. With these names,
// ReadExactly skips other members without a call of the description. A configuration is for several plugins, so one
// description has only a few of its members.
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

// describes reports whether the next member may be one of the names. Only ReadExactly has the names: for other reads,
// describes returns true.
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

// named reads the key of a member if this key comes next, and reports whether it has read the key.
func (c *Codec) named(key string) bool {
	if c.names != nil {
		c.names = append(c.names, key)
		return false
	}
	if from := c.at + 1; from < len(c.in) && c.in[from] != key[0] {
		return false // most keys differ here
	}
	end := c.at + 1 + len(key)
	if c.end || c.err != nil || len(c.in) <= end+1 || c.in[end] != '"' || c.in[end+1] != ':' || c.in[c.at] != '"' {
		return false // other keys differ in their length
	}
	next := c.in[c.at+1 : end]
	switch found := next == key; {
	case found && c.exact && slices.Contains(c.seen[c.own:], key):
		c.Fail(fmt.Errorf("%q appears twice", key))
	case found && c.exact:
		c.seen = append(c.seen, key)
	}
	if next == key {
		c.at = end + 2
	}
	return next == key
}

// more reads the separator before the next member or element, and reports whether there is a next member or element.
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
