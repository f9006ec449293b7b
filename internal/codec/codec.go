// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package codec reads and writes compact JSON. A type has one description, which is used both to read and to write. The
// description is a function that lists the members of an object, each with its name and its kind. A kind is a function
// that reads or writes a value of one Go type. For example, [Number] is the kind of an int.
//
//	func (w *Warm) describe(c *codec.Codec) {
//		c.Object(func() {
//			codec.Field(c, "min", &w.Min, codec.Number)
//			codec.Field(c, "max", &w.Max, codec.Number)
//		})
//	}
//
// The package is for processes that run for only some milliseconds, because encoding/json takes twenty times as many
// instructions. Program gen generates descriptions from the struct tags of types. Package codectest checks that a
// description and the struct tags agree.
package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Codec reads or writes one JSON text. After the first error, a Codec reads nothing more.
type Codec struct {
	in string
	// the offset of the next byte to read; between two members of an object, the next byte is the first byte of a key
	offset      int
	objectEnded bool // the object has no more members
	err         error

	trusted   bool
	exact     bool
	seenNames []string // names already read in the current object and in the objects that contain it
	ownNames  int      // index in seenNames where the names of the current object begin
	// if not nil, a description reads nothing, and only adds the names of its members to this list: see memberNames
	names []string

	out     []byte // nil: this codec reads
	asParts bool   // Copy does not copy a long text to out, but records it in cuts
	cuts    []cut
}

// Write appends the JSON of a value to out, and returns the result. The argument "out" must not be nil.
func Write(out []byte, value func(*Codec)) ([]byte, error) {
	c := Codec{out: out}
	value(&c)
	return c.out, c.err
}

// Read reads a value from a text. The text may have white space only in strings. If the text is null, the value is the
// zero value.
func Read(in []byte, value func(*Codec)) error {
	c := Codec{in: string(in)}
	return c.readAll(value)
}

// ReadExactly reads a value as encoding/json would read it. The text must be the output of json.Compact. ReadExactly
// returns an error if this package and encoding/json could read the text differently. For example, a name may appear
// twice, or a value may be null. Or a name may differ from a described name only in upper and lower case.
func ReadExactly(in []byte, value func(*Codec)) error {
	c := Codec{in: string(in), exact: true}
	return c.readAll(value)
}

func (c *Codec) readAll(value func(*Codec)) error {
	if value(c); c.err == nil && c.offset < len(c.in) {
		c.Fail(errors.New("there is text after the value"))
	}
	return c.err
}

// Writes reports whether this codec writes.
func (c *Codec) Writes() bool { return c.out != nil }

// Fail records the first error of the codec, and ignores later errors.
func (c *Codec) Fail(err error) {
	if c.err == nil {
		c.err = fmt.Errorf("at byte %d: %w", c.offset, err)
	}
}

// readByte compares the next byte with the byte b. If they are equal, it reads the byte and returns true.
func (c *Codec) readByte(b byte) bool {
	found := c.offset < len(c.in) && c.in[c.offset] == b
	if found {
		c.offset++
	}
	return found
}

// readWord compares the next bytes with a text. If they are equal, it reads the bytes and returns true.
func (c *Codec) readWord(text string) bool {
	found := strings.HasPrefix(c.in[c.offset:], text)
	if found {
		c.offset += len(text)
	}
	return found
}

// Each reads the same JSON value once with each of the descriptions, which may describe different members of the value.
func (c *Codec) Each(values ...func(*Codec)) {
	if c.Writes() {
		c.Fail(errors.New("Each only reads: a value with several descriptions cannot be written"))
		return
	}
	for at, i := c.offset, 0; i < len(values) && c.err == nil; i++ {
		c.offset = at
		values[i](c)
	}
}

// Object describes a JSON object. The function "members" describes the object's members. Object writes the members in
// the function's order. Object reads members in any order. If the text has the members in the function's order, Object
// calls the function only once, and so is faster. Object skips members that are not described.
func (c *Codec) Object(members func()) { c.ObjectAndRest(members, nil) }

// ObjectAndRest does what Object does, but keeps members that are not described. It reads the texts of these members
// into the map rest, and writes the texts after the described members.
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
	around := c.ownNames
	c.ownNames = len(c.seenNames)
	described := c.memberNames(members)
	for c.nextMember(true); !c.objectEnded && c.err == nil; {
		at := c.offset
		if c.isDescribed(described) {
			members()
		}
		if c.offset == at && c.err == nil {
			c.readUnknown(rest, described)
		}
	}
	c.seenNames, c.ownNames = c.seenNames[:c.ownNames], around
	c.objectEnded = false // the object that contains this object may have more members
}

func (c *Codec) writeRest(rest map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(rest)) {
		c.Comma()
		Text(&key, c)
		c.out = append(append(c.out, ':'), rest[key]...)
	}
}

// memberNames returns the names of all members that a description has. Only ReadExactly needs these names: for Read and
// ReadTrusted, memberNames returns nil. A configuration is for several plugins, so most of its members are not in one
// description. With the names, ReadExactly skips such members without a call of the description.
func (c *Codec) memberNames(members func()) []string {
	if !c.exact || c.err != nil {
		return nil
	}
	c.names = make([]string, 0, 32)
	members()
	names := c.names
	c.names = nil
	return names
}

// isDescribed reports whether the next member has one of the names. Only an exact Codec compares names. For Read and
// ReadTrusted, isDescribed always returns true.
func (c *Codec) isDescribed(names []string) bool {
	if !c.exact {
		return true
	}
	key := c.in[min(c.offset+1, len(c.in)):]
	return slices.Contains(names, key[:max(strings.IndexByte(key, '"'), 0)])
}

// readUnknown reads a member that is not described.
func (c *Codec) readUnknown(rest map[string]string, described []string) {
	from := c.offset
	key := c.readKey()
	near := slices.IndexFunc(described, func(name string) bool {
		return len(name) == len(key) && strings.EqualFold(name, key)
	})
	switch {
	case c.exact && len(key)+len(`"":`) != c.offset-from, c.exact && plainLen(key) < len(key):
		c.Fail(fmt.Errorf("%q has escapes, or is not ASCII: perhaps it is another spelling of a key", key))
	case near >= 0:
		c.Fail(fmt.Errorf("%q is perhaps another spelling of %q", key, described[near]))
	}
	raw := c.skipValue()
	if !c.exact && !json.Valid([]byte(raw)) {
		c.Fail(fmt.Errorf("%s: this is no JSON", key))
	} else if rest != nil {
		rest[key] = raw
	}
	c.nextMember(false)
}

// nextMember reads the text before the key of the next member. If there is no next member, it reads the end of the
// object.
func (c *Codec) nextMember(first bool) { c.objectEnded = !c.readSeparator(first, '{', '}') }

// readKey reads the key of a member, and the colon.
func (c *Codec) readKey() (key string) {
	if Text(&key, c); !c.readByte(':') {
		c.Fail(fmt.Errorf("want a colon after %q", key))
	}
	return key
}

// readKeyIf reads the key of the next member if it is equal to the given key, and reports whether it has read the key.
func (c *Codec) readKeyIf(key string) bool {
	if c.names != nil {
		c.names = append(c.names, key)
		return false
	}
	if from := c.offset + 1; from < len(c.in) && c.in[from] != key[0] {
		return false // the first bytes differ, as for most pairs of keys
	}
	end := c.offset + 1 + len(key)
	if c.objectEnded || c.err != nil || len(c.in) <= end+1 {
		return false
	}
	if c.in[end] != '"' || c.in[end+1] != ':' || c.in[c.offset] != '"' {
		return false // the next key has another length
	}
	next := c.in[c.offset+1 : end]
	switch found := next == key; {
	case found && c.exact && slices.Contains(c.seenNames[c.ownNames:], key):
		c.Fail(fmt.Errorf("%q appears twice", key))
	case found && c.exact:
		c.seenNames = append(c.seenNames, key)
	}
	if next == key {
		c.offset = end + 2
	}
	return next == key
}

// readSeparator reads the opening bracket or the comma before the next member or element. If there is no next member or
// element, readSeparator reads the closing bracket and returns false.
func (c *Codec) readSeparator(first bool, opening, closing byte) bool {
	switch {
	case c.err != nil:
		return false
	case first && !c.readByte(opening):
		c.Fail(fmt.Errorf("want %c", opening))
		return false
	case c.readByte(closing):
		return false
	case !first && !c.readByte(','):
		c.Fail(fmt.Errorf("want a comma or %c", closing))
		return false
	}
	return true
}
