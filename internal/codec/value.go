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

// plainLen returns the number of plain bytes at the beginning of s. A plain byte needs no escape in a JSON string: it
// is ASCII, and no control character, quote or backslash. plainLen checks eight bytes at once, because a Codec calls it
// for nearly all text.
func plainLen(s string) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(s)-n >= 8; n += 8 {
		b := s[n : n+8]
		x := uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
			uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
		// the variable "quote" has a zero byte for each quote in x, and "slash" has one for each backslash
		quote, slash := x^ones*'"', x^ones*'\\'
		if odd := (x | (x - ones*' ') | (quote-ones)&^quote | (slash-ones)&^slash) & tops; odd != 0 {
			// each bit of the variable "odd" marks a byte that is not plain. A subtraction may borrow from the next
			// byte, and wrongly mark it, too. But the first mark is always right
			return n + bits.TrailingZeros64(odd)/8
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
		if plainLen(*v) == len(*v) {
			c.out = append(append(append(c.out, '"'), *v...), '"')
			return
		}
		b, _ := json.Marshal(*v) // json.Marshal of a string cannot fail
		c.out = append(c.out, b...)
		return
	}
	if in := c.in[c.offset:]; len(in) > 0 && in[0] == '"' {
		in = in[1:]
		if n := plainLen(in); n < len(in) && in[n] == '"' {
			*v = in[:n]
			c.offset += n + 2
			return
		}
	}
	raw := c.skipValue()
	// Text also reads the keys of objects. json.Unmarshal accepts white space before a key, but readKeyIf does not find
	// such a key
	if strings.TrimLeft(raw, " \t\r\n") != raw {
		c.Fail(errors.New("there is white space before the text"))
		return
	}
	var s string
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		c.Fail(err)
	}
	*v = s
}

// Number is the kind of an int. The JSON number must have no fraction and no exponent.
func Number(v *int, c *Codec) {
	if c.Writes() {
		c.out = strconv.AppendInt(c.out, int64(*v), 10)
		return
	}
	raw := c.skipValue()
	n, err := strconv.Atoi(raw)
	if err == nil && strconv.Itoa(n) != raw {
		err = fmt.Errorf("%q is not how JSON writes an integer", raw)
	}
	if err != nil {
		c.Fail(err)
	}
	*v = n
}

// Natural is the kind of an unsigned integer.
func Natural[T uint32 | uint64](v *T, c *Codec) {
	if c.Writes() {
		c.out = strconv.AppendUint(c.out, uint64(*v), 10)
		return
	}
	raw := c.skipValue()
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
	if *v = c.readWord("true"); !*v && !c.readWord("false") {
		c.Fail(errors.New("want true or false"))
	}
}

// Time is the kind of a time.Time. A Codec writes the time in UTC, because otherwise the process would have to read the
// file of the local time zone.
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

// Scan reads a string, and returns the result of the function "parse" for this string. For an empty string, Scan
// returns the zero value.
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

// Raw is the kind of a value that may have any type. The Go value is the unparsed text.
func Raw(v *json.RawMessage, c *Codec) {
	if c.Writes() {
		c.out = append(c.out, *v...)
		return
	}
	*v = json.RawMessage(c.skipValue())
}

// Pointer returns the kind of a *T, made from the kind of a T. The JSON of a nil pointer is null.
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

// skipValue reads a value of any type, and returns its text. It finds the end of the value, but does not check the
// syntax inside.
func (c *Codec) skipValue() string {
	from := c.offset
	if c.offset += simpleObjectLen(c.in[c.offset:]); c.offset > from {
		return c.in[from:c.offset]
	}
	for depth := 0; c.offset < len(c.in); {
		switch b := c.in[c.offset]; {
		case b == '"':
			c.skipString()
		case b == '{' || b == '[':
			depth++
			c.offset++
		case depth == 0 && (b == ',' || b == '}' || b == ']'):
			return c.in[from:c.offset] // the value is a number, true, false or null, and ends here
		case b == '}' || b == ']':
			depth--
			c.offset++
		default:
			c.offset++
			continue
		}
		if depth == 0 {
			return c.in[from:c.offset]
		}
	}
	return c.in[from:c.offset]
}

// skipString reads a string, which may have escapes.
func (c *Codec) skipString() {
	for c.offset++; c.offset < len(c.in); c.offset++ {
		c.offset += plainLen(c.in[c.offset:])
		if c.offset == len(c.in) || c.in[c.offset] == '"' {
			break
		}
		if c.in[c.offset] == '\\' {
			c.offset++
		}
	}
	c.offset = min(c.offset+1, len(c.in))
}

// simpleObjectLen returns the length of the object at the beginning of s, or 0 if the object is not simple. A simple
// object has no escapes, and no braces except its own, so it ends with the first closing brace outside a string. The
// search functions of package strings are several times as fast as a loop over the members.
func simpleObjectLen(s string) int {
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
