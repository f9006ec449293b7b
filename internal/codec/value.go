// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// span returns how many bytes at the beginning of s need no escape in a JSON string. These bytes are ASCII without
// control characters, quotes and backslashes. span checks eight bytes at once, because it checks all text that is read
// or written.
func span(s string) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(s)-n >= 8; n += 8 {
		b := s[n : n+8]
		x := uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
			uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
		quote, slash := x^ones*'"', x^ones*'\\' // a byte of quote is zero where x has a quote; slash: a backslash
		if odd := (x | (x - ones*' ') | (quote-ones)&^quote | (slash-ones)&^slash) & tops; odd != 0 {
			return n + bits.TrailingZeros64(odd)/8 // a borrow affects only bytes after the first such byte
		}
	}
	for ; n < len(s); n++ {
		if b := s[n]; b < ' ' || b > '~' || b == '"' || b == '\\' {
			break
		}
	}
	return n
}

// Text is the kind of a string.
func Text(v *string, c *Codec) {
	if c.Writes() {
		if span(*v) == len(*v) {
			c.out = append(append(append(c.out, '"'), *v...), '"')
			return
		}
		b, _ := json.Marshal(*v) // json.Marshal of a string cannot fail
		c.out = append(c.out, b...)
		return
	}
	if in := c.in[c.at:]; len(in) > 0 && in[0] == '"' {
		in = in[1:]
		if n := span(in); n < len(in) && in[n] == '"' {
			*v = in[:n]
			c.at += n + 2
			return
		}
	}
	raw := c.skip()
	// json.Unmarshal would accept white space before a key, and a described member would then count as unknown
	if strings.TrimLeft(raw, " \t\r\n") != raw {
		c.Fail(errors.New("white space"))
		return
	}
	var s string
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		c.Fail(err)
	}
	*v = s
}

// Number is the kind of an int, without a fraction or an exponent.
func Number(v *int, c *Codec) {
	if c.Writes() {
		c.out = strconv.AppendInt(c.out, int64(*v), 10)
		return
	}
	raw := c.skip()
	n, err := strconv.Atoi(raw)
	if err == nil && strconv.Itoa(n) != raw {
		err = fmt.Errorf("%q is not how JSON writes an integer", raw)
	}
	if err != nil {
		c.Fail(err)
	}
	*v = n
}

// Natural is a Number without a sign.
func Natural[T uint32 | uint64](v *T, c *Codec) {
	if c.Writes() {
		c.out = strconv.AppendUint(c.out, uint64(*v), 10)
		return
	}
	raw := c.skip()
	n, err := strconv.ParseUint(raw, 10, 64)
	if err == nil && strconv.FormatUint(uint64(T(n)), 10) != raw {
		err = fmt.Errorf("%q is too large, or not how JSON writes an integer", raw)
	}
	if err != nil {
		c.Fail(err)
	}
	*v = T(n)
}

// Flag is the kind of a bool.
func Flag(v *bool, c *Codec) {
	if c.Writes() {
		c.out = strconv.AppendBool(c.out, *v)
		return
	}
	if *v = c.word("true"); !*v && !c.word("false") {
		c.Fail(errors.New("want true or false"))
	}
}

// Time is the kind of a time. Time writes the time in UTC, because the process would have to read a file for another
// time zone.
func Time(v *time.Time, c *Codec) {
	if !c.Writes() {
		*v = Scan(c, parseTime)
		return
	}
	b, err := v.UTC().AppendText(append(c.out, '"'))
	if c.out = append(b, '"'); err != nil {
		c.Fail(err)
	}
}

func parseTime(s string) (time.Time, error) { return time.Parse(time.RFC3339, s) }

// Addr is the kind of an IP address.
func Addr(v *netip.Addr, c *Codec) {
	if !c.Writes() {
		*v = Scan(c, netip.ParseAddr)
		return
	}
	if v.Zone() != "" { // a zone may be any text
		s := v.String()
		Text(&s, c)
		return
	}
	b, _ := v.AppendText(append(c.out, '"')) // it never fails
	c.out = append(b, '"')
}

// Prefix is the kind of a CIDR block, or of an address with a prefix length.
func Prefix(v *netip.Prefix, c *Codec) {
	if !c.Writes() {
		*v = Scan(c, netip.ParsePrefix)
		return
	}
	b, _ := v.AppendText(append(c.out, '"')) // it never fails
	c.out = append(b, '"')
}

// Scan reads a string and parses it. An empty string is the zero value.
func Scan[T any](c *Codec, parse func(string) (T, error)) (v T) {
	var s string
	if Text(&s, c); s == "" {
		return v
	}
	v, err := parse(s)
	if err != nil {
		c.Fail(err)
	}
	return v
}

// Raw is the kind of any value, unparsed.
func Raw(v *json.RawMessage, c *Codec) {
	if c.Writes() {
		c.out = append(c.out, *v...)
		return
	}
	*v = json.RawMessage(c.skip())
}

// Pointer returns the kind of a pointer: the value has the given kind, or is null if the pointer is nil.
func Pointer[T any](kind func(*T, *Codec)) func(**T, *Codec) {
	return func(v **T, c *Codec) {
		if !c.Writes() {
			*v = new(T)
		}
		if *v == nil {
			c.out = append(c.out, "null"...)
			return
		}
		kind(*v, c)
	}
}

// skip reads any value and returns its text. skip does not check the syntax inside.
func (c *Codec) skip() string {
	from := c.at
	if c.at += flat(c.in[c.at:]); c.at > from {
		return c.in[from:c.at]
	}
	for depth := 0; c.at < len(c.in); {
		switch b := c.in[c.at]; {
		case b == '"':
			c.quoted()
		case b == '{' || b == '[':
			depth++
			c.at++
		case depth == 0 && (b == ',' || b == '}' || b == ']'):
			return c.in[from:c.at] // the value is a number or a word, and ends here
		case b == '}' || b == ']':
			depth--
			c.at++
		default:
			c.at++
			continue
		}
		if depth == 0 {
			return c.in[from:c.at]
		}
	}
	return c.in[from:c.at]
}

// quoted reads a string that may have escapes.
func (c *Codec) quoted() {
	for c.at++; c.at < len(c.in); c.at++ {
		c.at += span(c.in[c.at:])
		if c.at == len(c.in) || c.in[c.at] == '"' {
			break
		}
		if c.in[c.at] == '\\' {
			c.at++
		}
	}
	c.at = min(c.at+1, len(c.in))
}

// flat returns the length of the object at the beginning of s, or 0 if the object is not simple. A simple object has no
// escapes and no other braces, so it ends with the first closing brace outside a string. The searches of package
// strings use vector instructions: four searches take a fraction of the time of reading each member.
func flat(s string) int {
	if !strings.HasPrefix(s, "{") {
		return 0
	}
	n := strings.IndexByte(s, '}') + 1
	if n == 0 || strings.Count(s[:n], `"`)%2 > 0 || strings.IndexByte(s[1:n], '{') >= 0 ||
		strings.IndexByte(s[:n], '\\') >= 0 {
		return 0
	}
	return n
}
